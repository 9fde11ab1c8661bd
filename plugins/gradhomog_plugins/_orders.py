"""The orders in which tasks meet each other, where each task's row is changed by one other task's after another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

TOGETHER = 32  # tasks up to which the N³ products of all meetings are looked up at once
PART = 64  # rows that are changed together where tasks are more: their products stay in the processor's cache


def meeting_orders(tasks: int, order: Literal["random", "fixed"], generator: torch.Generator) -> Tensor:
    """For each task an order of the others, `[tasks, tasks − 1]`: that of the batch, or a permutation of its own."""
    if tasks == 2:
        return torch.tensor([[1], [0]])
    # Sorting random numbers permutes uniformly; infinity puts the task itself last, where it is cut off.
    if order == "random":
        sorted_by = torch.rand(tasks, tasks, generator=generator, dtype=torch.float64)
    else:
        sorted_by = torch.arange(tasks, dtype=torch.float64).repeat(tasks, 1)
    return sorted_by.fill_diagonal_(torch.inf).argsort(dim=1)[:, :-1]


def meetings(products: Tensor, orders: Tensor) -> Iterable[Tensor]:
    """For each step k but the last, products of the row met then with those met later: P[o_ik, o_il] over i and l > k.

    P = `products` `[tasks, tasks]`; `orders` of all tasks, or of some.
    """
    steps = range(orders.shape[1] - 1)
    if len(products) <= TOGETHER:
        found = products[orders[:, :-1, None], orders[:, None, :]]
        return [found[:, step, step + 1 :] for step in steps]
    return (products[orders[:, step]].gather(1, orders[:, step + 1 :]) for step in steps)
