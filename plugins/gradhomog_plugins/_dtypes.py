"""The dtype in which rows of low precision are summed."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def wide_dtype(*values: Tensor) -> torch.dtype:
    """Return the widest dtype of the tensors, at least float32.

    >>> wide_dtype(torch.zeros(1, dtype=torch.bfloat16))
    torch.float32
    """
    return functools.reduce(torch.promote_types, (value.dtype for value in values), torch.float32)
