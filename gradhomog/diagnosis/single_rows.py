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
