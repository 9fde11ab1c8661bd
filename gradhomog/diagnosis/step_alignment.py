"""Alignment of each expected gradient with the plain step: a negative product means that the step harms the task."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.diagnosis.estimates import Estimate, jackknife
from gradhomog.diagnosis.expected_gradients import squares
from gradhomog.diagnosis.labelled_gramian import LabelledGramian


@dataclass(frozen=True, eq=False)
class StepAlignment:
    """Expected gradients μ_k of K labels relative to the plain step: the negative of their mean μ̄ = Σ_k p_k μ_k.

    p_k is the share of label k among the rows of a batch, on average over the measured batches; 1/K if every batch has
    one row of each label. Intervals are for these shares.

    Conflict of two tasks is harmless if the mean still decreases both losses: for two tasks of norms n₁ ≤ n₂ and cosine
    c, the step increases the loss of the first if and only if n₁ < −c n₂.

    Attributes:
        products: ⟨μ_k, μ̄⟩ `[K]`; if negative, a small plain step increases the loss of task k. Unbiased.
        cosines: ⟨μ_k, μ̄⟩ / (‖μ_k‖ ‖μ̄‖) `[K]`; NaN unless the intervals of both norms are above zero.
    """

    products: Estimate
    cosines: Estimate


def step_alignment(gramian: LabelledGramian) -> StepAlignment:
    """Estimate the alignment from pairs of rows of different batches.

    Raises:
        OptionError: there are fewer than three batches.

    >>> rows = torch.tensor([[1.0, 0.0], [-3.0, 4.0]]).repeat(3, 1, 1)  # norms 1 and 5, cosine −0.6: 1 < 0.6 · 5
    >>> step_alignment(LabelledGramian.of_rows(rows)).products.value
    tensor([-1., 11.], dtype=torch.float64)
    """
    inner, without = gramian.inner_products
    counts = gramian.row_counts
    shares = (counts / counts.sum(1, keepdim=True)).mean(0)
    mean_square = jackknife(inner @ shares @ shares, without @ shares @ shares)
    resolved = (jackknife(inner, without).diagonal().low > 0) & (mean_square.low > 0)
    return StepAlignment(
        products=jackknife(inner @ shares, without @ shares),
        cosines=jackknife(_cosines(inner, shares), _cosines(without, shares)).where(resolved),
    )


def _cosines(inner: Tensor, shares: Tensor) -> Tensor:
    products = inner @ shares
    found = squares(inner) * (products @ shares)[..., None]
    return products / torch.where(found > 0, found, torch.nan).sqrt()
