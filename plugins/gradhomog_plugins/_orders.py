"""The orders in which tasks meet each other, where each task's row is changed by one other task's after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TOGETHER = 32  # tasks up to which all steps' N³ numbers are looked up at once


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


def meetings(products: Tensor, orders: Tensor) -> Callable[[int], Tensor]:
    """By step k: what the row that task i then meets has with those that i meets, in its order.

    P[o_ik, o_il] `[tasks, tasks − 1]` over i and l, of P = `products` `[tasks, tasks]`.
    """
    if len(orders) > TOGETHER:
        return lambda step: products[orders[:, step]].gather(1, orders)
    found = products[orders[:, :-1, None], orders[:, None, :]].unbind(dim=1)
    return lambda step: found[step]


def _others(keys: Tensor) -> Tensor:
    # Sorting random keys permutes uniformly; an infinite key puts the task itself last, where it is cut off.
    return keys.fill_diagonal_(torch.inf).argsort(dim=1)[:, :-1]
