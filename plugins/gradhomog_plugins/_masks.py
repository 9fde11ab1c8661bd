"""Directions multiplied by a mask of coordinates, and the factor that restores their length."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gradhomog_plugins import _columns
from gradhomog_plugins._columns import wide_dtype


class MaskedMean(NamedTuple):
    """The masked mean of the rows of one tensor, or of a block of it.

    Attributes:
        mean: m ∘ ḡ, at least float32.
        mask_sum: Σ_p m_p, a float64 scalar.
        present: the number of coordinates that are not zero in all rows, a float64 scalar.
    """

    mean: Tensor
    mask_sum: Tensor
    present: Tensor


def by_blocks(rows: Tensor, masked_mean: Callable[[Tensor], MaskedMean]) -> MaskedMean:
    """Apply a function of `[tasks, columns]` to blocks of rows `[tasks, *shape]`; the mean has the shape `[*shape]`."""
    parts = [masked_mean(block.to(wide_dtype(block))) for block in _columns.split(rows)]
    means, sums, present = zip(*parts, strict=True)
    return MaskedMean(_columns.join(means, rows), torch.stack(sums).sum(), torch.stack(present).sum())


def column_means(rows: Tensor) -> Tensor:
    """Return the mean of each column of `[tasks, columns]`; the sum itself may overflow."""
    power = 2.0 ** math.ceil(math.log2(len(rows)))  # exact: entries that cancel have the mean zero
    total: Tensor = (rows / power).sum(dim=0)
    return total * (power / len(rows))


def sign_counts(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return |Σ_i sgn g_i| and the number of entries that are not zero, of each column of `[tasks, columns]`."""
    signs = rows.detach().sign()
    return signs.sum(dim=0).abs(), signs.abs().sum(dim=0)


def rescaled(parts: Mapping[str, MaskedMean]) -> dict[str, Tensor]:
    """Return r m ∘ ḡ by tensor, with r = present / mask_sum of all tensors together."""
    present = torch.stack([part.present for part in parts.values()]).sum()
    mask_sum = torch.stack([part.mask_sum for part in parts.values()]).sum()
    factor = present / torch.where(mask_sum > 0, mask_sum, 1.0)  # where the mask is zero, so is the mean
    return {name: part.mean * factor.to(part.mean.dtype) for name, part in parts.items()}
