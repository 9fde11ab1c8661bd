"""The orders in which tasks meet each other, where each task's row is changed by one other task's after another."""

from __future__ import annotations

import torch
from torch import Tensor


def fixed_orders(tasks: int) -> Tensor:
    """For each task the other tasks as they stand in the batch, `[tasks, tasks − 1]`."""
    if tasks == 2:
        return torch.tensor([[1], [0]])
    return _others(torch.arange(tasks, dtype=torch.float64).repeat(tasks, 1))


def random_orders(tasks: int, generator: torch.Generator) -> Tensor:
    """For each task a permutation of its own of the other tasks, `[tasks, tasks − 1]`; nothing is drawn for two."""
    if tasks <= 2:
        return fixed_orders(tasks)
    return _others(torch.rand(tasks, tasks, generator=generator, dtype=torch.float64))


def meetings(products: Tensor, orders: Tensor) -> tuple[Tensor, ...]:
    """For each step but the last: what the row that task i then meets has with those that i meets, in its order.

    P[o_ik, o_il] `[tasks, tasks − 1]` over i and l for the k-th step, of P = `products` `[tasks, tasks]`.
    """
    return products[orders[:, :-1, None], orders[:, None, :]].unbind(dim=1)


def _others(keys: Tensor) -> Tensor:
    # Sorting random keys permutes uniformly; an infinite key puts the task itself last, where it is cut off.
    return keys.fill_diagonal_(torch.inf).argsort(dim=1)[:, :-1]
