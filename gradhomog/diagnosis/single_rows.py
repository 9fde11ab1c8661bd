"""Norms, cosines, distances and conflict of single rows, as homogenizers receive them: signal and noise together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.conflict import cosines, distances
from gradhomog.diagnosis.estimates import Estimate, jackknife
from gradhomog.diagnosis.labelled_gramian import LabelledGramian
from gradhomog.rows.arithmetic import safe_sqrt


@dataclass(frozen=True, eq=False)
class SingleRows:
    """Means over single rows g_k of K labels (tasks or domains), with intervals over batches.

    The diagonals of matrices over rows of the same batch are NaN if no batch has two rows of a label.

    Attributes:
        norms: mean of ‖g_k‖ `[K]`.
        cosines: mean cosine of two rows of the same batch `[K, K]`.
        independent_cosines: mean cosine of two rows of different batches `[K, K]`; the diagonal is the mean cosine of
            two rows of one label.
        distances: mean distance of two rows of the same batch `[K, K]`.
        conflict_rates: share of pairs of rows of the same batch with a negative inner product `[K, K]`, in [0, 1].
        independent_conflict_rates: the same for rows of different batches: the conflict that independent noise around
            the expected gradients explains. No distribution is assumed. A different rate within batches is the effect
            of the batch, as of homogenizers that compare its rows.
        mean_cosine, conflict_rate, independent_conflict_rate: means over pairs of different labels, scalars.
    """

    norms: Estimate
    cosines: Estimate
    independent_cosines: Estimate
    distances: Estimate
    conflict_rates: Estimate
    independent_conflict_rates: Estimate
    mean_cosine: Estimate
    conflict_rate: Estimate
    independent_conflict_rate: Estimate


def single_rows(gramian: LabelledGramian) -> SingleRows:
    """Average norms of rows, and cosines, distances and conflict of pairs of rows, by label.

    Cost: O(rows²) time and memory.

    Raises:
        OptionError: there are fewer than three batches.

    >>> rows = torch.tensor([[1.0, 0.0], [-3.0, 4.0]]).repeat(3, 1, 1)  # the same two rows in three batches
    >>> found = single_rows(LabelledGramian.of_rows(rows))
    >>> found.norms.value, found.cosines.value[0, 1], found.conflict_rates.value[0, 1]
    (tensor([1., 5.], dtype=torch.float64), tensor(-0.6000, dtype=torch.float64), tensor(1., dtype=torch.float64))
    """
    products = gramian.gramian
    angles, conflicts = cosines(products), (products < 0).double()
    same_batch, different_batches = gramian.same_batch, gramian.different_batches
    return SingleRows(
        norms=jackknife(*gramian.each_row(safe_sqrt(products.diagonal()))),
        cosines=jackknife(*same_batch(angles)),
        independent_cosines=jackknife(*different_batches(angles)),
        distances=jackknife(*same_batch(distances(products))),
        conflict_rates=jackknife(*same_batch(conflicts)),
        independent_conflict_rates=jackknife(*different_batches(conflicts)),
        mean_cosine=jackknife(*map(_pair_mean, same_batch(angles))),
        conflict_rate=jackknife(*map(_pair_mean, same_batch(conflicts))),
        independent_conflict_rate=jackknife(*map(_pair_mean, different_batches(conflicts))),
    )


def _pair_mean(matrix: Tensor) -> Tensor:
    """The mean over different labels `[...]` of a matrix `[..., K, K]`; pairs that no batch has are NaN."""
    different = ~torch.eye(matrix.shape[-1], dtype=torch.bool)
    return matrix[..., different].nanmean(-1)


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
