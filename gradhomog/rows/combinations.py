"""Rows combined: the mean, a weighted mean, a mixture of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog.rows import products
from gradhomog.rows.structure import AnyRows, Direction, Rows, repeated, transform
from gradhomog.rows.unformed import UnformedRows


def mean(rows: AnyRows, *, owned: bool = False) -> Direction:
    """The plain learner's direction: the mean over tasks.

    Of rows that are one in memory it is a copy of that one; or itself, if the rows are `owned` by nobody else and it is
    all that their memory holds.
    """
    if isinstance(rows, UnformedRows):
        return rows.weighted_mean(torch.ones(rows.tasks, dtype=torch.float64))

    def average(value: Tensor) -> Tensor:
        if not repeated(value):
            tasks = value.shape[0]  # value.mean(0) takes up to twice as long (measured)
            return _weighted_sum(value, torch.full((tasks,), 1 / tasks, dtype=torch.float64))
        row = value[0]
        alone = row.untyped_storage().nbytes() == row.numel() * row.element_size()
        return row if owned and alone else row.clone()

    return transform(rows, average)


def weighted_mean(rows: AnyRows, weights: Tensor) -> Direction:
    """`1/N Σ_i weights_i · row_i`, in the dtype of the rows (float16 and bfloat16 rows are summed in float32).

    Cost: one read of the rows, one write of the direction.
    """
    if isinstance(rows, UnformedRows):
        return rows.weighted_mean(weights)
    shares = weights / weights.shape[0]
    return transform(rows, lambda value: _weighted_sum(value, shares))


def _weighted_sum(value: Tensor, shares: Tensor) -> Tensor:
    narrow = value.dtype.itemsize < 4
    scaled = shares.to(value.device, torch.float32 if narrow else value.dtype)
    if repeated(value):
        found = (scaled.sum() * (value[0].float() if narrow else value[0])).to(value.dtype)
    else:
        flat = value if value.dim() == 2 else value.reshape(value.shape[0], -1)
        found = _narrow_sum(flat, scaled) if narrow else torch.mv(flat.t(), scaled)
    return found if found.dim() == value.dim() - 1 else found.reshape(value.shape[1:])


def _narrow_sum(flat: Tensor, scaled: Tensor) -> Tensor:
    """The sum of rows of half precision, formed in float32, in theirs."""
    return torch.cat([torch.mv(part.t().float(), scaled).to(flat.dtype) for part in products.in_parts(flat)])


def mix(rows: Rows, mixing: Tensor) -> Rows:
    """`mixing @ rows`: new rows, materialised; cost N² · params. Of weights that are all one, the rows given."""
    if mixing.dim() == 1:
        if not mixing.requires_grad and mixing.tolist() == [1.0] * len(mixing):
            return rows
        mixing = torch.diag(mixing)

    def combine(value: Tensor) -> Tensor:
        flat = value.reshape(value.shape[0], -1)
        dtype = value.dtype if value.dtype.itemsize >= 4 else torch.float32
        mixed = mixing.to(value.device, dtype) @ flat.to(dtype)
        return mixed.to(value.dtype).reshape(-1, *value.shape[1:])

    return transform(rows, combine)
