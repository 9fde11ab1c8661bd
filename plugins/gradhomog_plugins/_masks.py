"""Directions multiplied by a mask of coordinates, and the factor that restores their length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Rescale = Literal["none", "all", "tensor"]

# Columns of a block whose rows fit the cache: a third of the time of whole rows (4 × 10⁶, measured).
COLUMNS = 2**15


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
    matrix = rows.reshape(len(rows), rows[0].numel())
    wide = torch.promote_types(rows.dtype, torch.float32)
    parts = [masked_mean(block.to(wide)) for block in torch.split(matrix, COLUMNS, dim=1)]
    means, sums, present = zip(*parts, strict=True)
    return MaskedMean(torch.cat(means).reshape(rows.shape[1:]), torch.stack(sums).sum(), torch.stack(present).sum())


def sign_counts(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return |Σ_i sgn g_i| and the number of entries that are not zero, of each column of `[tasks, columns]`."""
    signs = rows.detach().sign()
    return signs.sum(dim=0).abs(), signs.abs().sum(dim=0)


def rescaled(parts: Mapping[str, MaskedMean], rescale: Rescale) -> dict[str, Tensor]:
    """Return r m ∘ ḡ by tensor, with r = present / mask_sum over `"all"` tensors together or of each `"tensor"`."""
    if rescale == "none":
        return {name: part.mean for name, part in parts.items()}
    each = {name: torch.stack([part.present, part.mask_sum]) for name, part in parts.items()}
    if rescale == "all":
        together = torch.stack(list(each.values())).sum(dim=0)
        each = dict.fromkeys(each, together)
    return {name: part.mean * _quotient(*each[name]).to(part.mean.dtype) for name, part in parts.items()}


def _quotient(present: Tensor, mask_sum: Tensor) -> Tensor:
    return present / torch.where(mask_sum > 0, mask_sum, 1.0)  # where the mask is zero, so is the mean
