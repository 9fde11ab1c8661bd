"""Orders of the other tasks for each task, and coefficients of sequential projections in these orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

# Meetings whose products with each other are looked up at once; after as many those with all rows are brought up to
# date. For 1,024 tasks 8 to 32 take the same time, and blocks of 32 the least memory.
BLOCK = 32


def meeting_orders(tasks: int, order: Literal["random", "fixed"], generator: torch.Generator) -> Tensor:
    """For each task an order of the others, `[tasks, tasks − 1]`: that of the batch, or random and independent."""
    if tasks == 2:
        return torch.tensor([[1], [0]])
    # Sorting random numbers permutes uniformly; infinity puts the task itself last, where it is cut off.
    if order == "random":
        sorted_by = torch.rand(tasks, tasks, generator=generator, dtype=torch.float64)
    else:
        sorted_by = torch.arange(tasks, dtype=torch.float64).repeat(tasks, 1)
    return sorted_by.fill_diagonal_(torch.inf).argsort(dim=1)[:, :-1]


def projection_coefficients(
    products: Tensor, orders: Tensor, amount: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Multiples of the other rows that each row receives, in order, and its inner products before; shaped as `orders`.

    With `products` P `[tasks, tasks]` it computes, for all rows i at once,

        for k, met in enumerate(orders[i]):
            before[i, k] = inner[i, met]         # inner = P at first
            given[i, k] = amount(before[i, k])
            inner[i] += given[i, k] * P[met]
    """
    inner, given, before = products, [products[:, :0]], [products[:, :0]]
    for start in range(0, orders.shape[1], BLOCK):
        block = orders[:, start : start + BLOCK]
        left, between = inner.gather(1, block), products[block[:, :-1, None], block[:, None, :]]
        shown, found = [left[:, :1]], [amount(left[:, :1])]
        for step in range(block.shape[1] - 1):
            left = torch.addcmul(left[:, 1:], found[-1], between[:, step, step + 1 :])
            shown.append(left[:, :1])
            found.append(amount(shown[-1]))
        given.append(torch.cat(found, dim=1))
        before.append(torch.cat(shown, dim=1))
        if start + BLOCK < orders.shape[1]:
            inner = inner + _combined(products, block, given[-1])
    return torch.cat(given, dim=1), torch.cat(before, dim=1)


def _combined(products: Tensor, block: Tensor, amounts: Tensor) -> Tensor:
    """Σ_k a_ik P[o_ik]; with a graph as a product of matrices, which is slower and differentiable twice."""
    if torch.is_grad_enabled() and products.requires_grad:
        return torch.zeros_like(products).scatter(1, block, amounts) @ products
    return torch.nn.functional.embedding_bag(block, products, per_sample_weights=amounts, mode="sum")
