"""Leaving out the rows that are zero, for methods that would stop because of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def without_zero_rows(gramian: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
    """What `solve` makes of the Gramian of the other rows, `[tasks]`, and 0 for those that are zero.

    If all are, 1/tasks each.
    """
    index = torch.nonzero(gramian.diagonal() > 0).flatten()
    if len(index) == 0:
        return torch.full_like(gramian[0], 1 / len(gramian))
    return torch.zeros_like(gramian[0]).index_put((index,), solve(gramian[index][:, index]))
