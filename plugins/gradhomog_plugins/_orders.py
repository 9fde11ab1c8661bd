"""Orders of the other tasks for each task, and coefficients of sequential projections in these orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

# Projections per block. Within a block only its own inner products are updated, after it those with all rows.
# For 1,024 tasks, blocks of 8 to 32 take the same time, and blocks of 32 the least memory.
BLOCK = 32


def task_orders(tasks: int, order: Literal["random", "fixed"], generator: torch.Generator) -> Tensor:
    """Return an order of the other tasks for each task, `[tasks, tasks − 1]`: random, or that of the batch."""
    if tasks == 2:
        return torch.tensor([[1], [0]])
    # Sorted random numbers are a uniform permutation; infinity sorts the task itself last, and the last is removed.
    if order == "random":
        sorted_by = torch.rand(tasks, tasks, generator=generator, dtype=torch.float64)
    else:
        sorted_by = torch.arange(tasks, dtype=torch.float64).repeat(tasks, 1)
    return sorted_by.fill_diagonal_(torch.inf).argsort(dim=1)[:, :-1]


def projection_coefficients(
    products: Tensor, orders: Tensor, amount: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the factors of the other rows that are added to each row, and its inner products with them.

    Each inner product is that before the addition. Both results have the shape of `orders`.


    With `products` P `[tasks, tasks]` it computes, for all rows i at once,

        for k, other in enumerate(orders[i]):
            before[i, k] = inner[i, other]       # inner = P at first
            amounts[i, k] = amount(before[i, k])
            inner[i] += amounts[i, k] * P[other]
    """
    inner, amounts, before = products, [products[:, :0]], [products[:, :0]]
    for start in range(0, orders.shape[1], BLOCK):
        block = orders[:, start : start + BLOCK]
        remaining, between = inner.gather(1, block), products[block[:, :-1, None], block[:, None, :]]
        block_products, block_amounts = [remaining[:, :1]], [amount(remaining[:, :1])]
        for step in range(block.shape[1] - 1):
            remaining = torch.addcmul(remaining[:, 1:], block_amounts[-1], between[:, step, step + 1 :])
            block_products.append(remaining[:, :1])
            block_amounts.append(amount(block_products[-1]))
        amounts.append(torch.cat(block_amounts, dim=1))
        before.append(torch.cat(block_products, dim=1))
        if start + BLOCK < orders.shape[1]:
            inner = inner + _weighted_sum(products, block, amounts[-1])
    return torch.cat(amounts, dim=1), torch.cat(before, dim=1)


def _weighted_sum(products: Tensor, block: Tensor, amounts: Tensor) -> Tensor:
    """Return Σ_k a_ik P[o_ik]; with a graph as a product of matrices, which is slower but differentiable twice."""
    if torch.is_grad_enabled() and products.requires_grad:
        return torch.zeros_like(products).scatter(1, block, amounts) @ products
    return torch.nn.functional.embedding_bag(block, products, per_sample_weights=amounts, mode="sum")
