"""Call a solver on the nonzero rows only, for methods in which a single zero row makes the direction zero."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradhomog import Solution


def without_zero_rows(gramian: Tensor, solve: Callable[[Tensor], Solution]) -> Solution:
    """Return the solution for the Gramian of the nonzero rows, with weight 0 for zero rows.

    If all rows are zero, all weights are 1/tasks.
    """
    index = torch.nonzero(gramian.diagonal() > 0).flatten()
    if len(index) == 0:
        return Solution(torch.full_like(gramian[0], 1 / len(gramian)), torch.ones_like(gramian[0, 0]).bool())
    weights, converged = solve(gramian[index][:, index])
    return Solution(torch.zeros_like(gramian[0]).index_put((index,), weights), converged)
