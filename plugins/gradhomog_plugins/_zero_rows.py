"""Leaving out rows that are zero, for methods whose step they would stop."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradhomog import Solution


def without_zero_rows(gramian: Tensor, solve: Callable[[Tensor], Solution]) -> Solution:
    """The solution for the Gramian of the other rows, with weight 0 for rows that are zero.

    If all are zero, 1/tasks each.
    """
    index = torch.nonzero(gramian.diagonal() > 0).flatten()
    if len(index) == 0:
        return Solution(torch.full_like(gramian[0], 1 / len(gramian)), torch.ones_like(gramian[0, 0]).bool())
    weights, converged = solve(gramian[index][:, index])
    return Solution(torch.zeros_like(gramian[0]).index_put((index,), weights), converged)
