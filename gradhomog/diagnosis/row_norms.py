"""Distribution of the norms of single rows: ratios of typical norms, and heavy tails."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.diagnosis.estimates import Estimate, jackknife
from gradhomog.diagnosis.labelled_gramian import LabelledGramian


@dataclass(frozen=True, eq=False)
class RowNorms:
    """Norms of single rows g_k of K labels, robust to a few long rows, with intervals over batches.

    Attributes:
        log_differences: mean log ‖g_k‖ − mean log ‖g_l‖ `[K, K]`, the logarithm of the ratio of geometric means; NaN if
            a label has a zero row.
        effective_shares: (mean ‖g_k‖²)² / mean ‖g_k‖⁴ `[K]`, the effective share of rows that contribute to the mean
            squared norm, in [1/B, 1] for B rows: 1 for equal norms, 1/B if one row is much longer than the others.
            Intervals are meaningless for small shares: the moments may not exist.

    Source: of the shares: Kish 1965, "Survey sampling", the effective sample size for weights ‖g‖².
    """

    log_differences: Estimate
    effective_shares: Estimate


def row_norms(gramian: LabelledGramian) -> RowNorms:
    """Return statistics of the norms of rows by label.

    Cost: O(rows).

    Raises:
        OptionError: there are fewer than three batches.

    >>> rows = torch.tensor([[1.0], [2.0], [1.0], [4.0]]).reshape(4, 1, 1)
    >>> found = row_norms(LabelledGramian.of_rows(rows))
    >>> print(f"{found.effective_shares.value.item():.2f}")  # (22 / 4)² / (274 / 4)
    0.44
    """
    squares = gramian.gramian.diagonal().clamp_min(0)
    # Relative to the largest: fourth powers of norms would overflow.
    relative = squares / torch.where(squares.max() > 0, squares.max(), 1.0)
    pairs = zip(gramian.each_row(relative), gramian.each_row(relative.square()), strict=True)
    return RowNorms(
        log_differences=jackknife(*map(_differences, gramian.each_row(squares.log() / 2))),
        effective_shares=jackknife(*(_share(second, fourth) for second, fourth in pairs)),
    )


def _share(second: Tensor, fourth: Tensor) -> Tensor:
    """The effective share from second and fourth moments; 1 for zero rows, and where only rounding remains."""
    return torch.where(fourth > 0, second.square() / fourth, 1.0).clamp(max=1.0)


def _differences(means: Tensor) -> Tensor:
    """Differences `[..., K, K]` of numbers `[..., K]`; NaN for infinite ones."""
    finite = torch.where(means.isfinite(), means, torch.nan)
    return finite[..., :, None] - finite[..., None, :]
