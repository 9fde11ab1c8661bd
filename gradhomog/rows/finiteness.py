"""Whether rows hold NaN or infinity: told by sums, and only where these leave a doubt number by number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradhomog.rows import products
from gradhomog.rows.structure import AnyRows, Direction, Rows, blocks, repeated
from gradhomog.rows.unformed import UnformedRows


def finite_tasks(rows: AnyRows) -> list[bool]:
    """Which rows hold neither NaN nor infinity. Cost: one read of the rows."""
    if isinstance(rows, UnformedRows):
        return rows.finite_tasks()
    named = list(blocks(rows).values())
    totals = _numbers([_sum(block[:1] if repeated(block) else block, 1).expand(len(block)) for block in named])
    return [
        all(math.isfinite(total[task]) or _look(block[task]) for total, block in zip(totals, named, strict=True))
        for task in range(len(named[0]))
    ]


def all_finite(rows: Rows | Direction) -> bool:
    """Whether they hold neither NaN nor infinity. Cost: one read of the rows."""
    values = [rows] if isinstance(rows, Tensor) else rows.values()
    return all(which_finite([value[:1] if value.dim() and repeated(value) else value for value in values]))


def which_finite(tensors: Sequence[Tensor]) -> list[bool]:
    """Of each tensor, whether it holds neither NaN nor infinity. Cost: one read of all."""
    totals = _numbers([_sum(value, None) for value in tensors])
    return [math.isfinite(total) or _look(value) for total, value in zip(totals, tensors, strict=True)]


def _sum(value: Tensor, dim: int | None) -> Tensor:
    """A sum takes 1/25 of the time of looking at every number (measured), but can overflow where no number has."""
    value = value.detach()
    if value.dtype.itemsize >= 4:
        return value.sum(dim)
    # Of half precision in parts: asked for a sum in float32, the library makes a copy of the whole.
    matrix = value if dim == 1 else value.reshape(1, -1)
    total = torch.stack([part.float().sum(1) for part in products.in_parts(matrix)]).sum(0)
    return total if dim == 1 else total[0]


def _look(value: Tensor) -> bool:
    return bool(torch.isfinite(value).all())


def _numbers(tensors: Sequence[Tensor]) -> list[Any]:
    """The numbers of tensors of one shape, in one transfer from where they are."""
    if len(tensors) == 1:
        return [tensors[0].tolist()]
    found: list[Any] = torch.stack([tensor.double() for tensor in tensors]).tolist() if tensors else []
    return found
