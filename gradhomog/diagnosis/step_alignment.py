"""Alignment of each expected gradient with the plain step: a negative product means that the step harms the task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradhomog.diagnosis.estimates import Estimate, jackknife
from gradhomog.diagnosis.labelled_gramian import LabelledGramian


@dataclass(frozen=True, eq=False)
class StepAlignment:
    """Expected gradients μ_k of K labels relative to their mean μ̄, along whose negative the plain step goes.

    Conflict of two tasks is harmless if the mean still decreases both losses: for two tasks of norms n₁ ≤ n₂ and cosine
    c, the step increases the loss of the first if and only if n₁ < −c n₂.

    Attributes:
        products: ⟨μ_k, μ̄⟩ `[K]`; if negative, a small plain step increases the loss of task k. Unbiased.
        cosines: ⟨μ_k, μ̄⟩ / (‖μ_k‖ ‖μ̄‖) `[K]`; NaN unless the intervals of both norms are above zero.
    """

    products: Estimate
    cosines: Estimate

    def record(self) -> dict[str, Any]:
        """Return the estimates for JSON."""
        return {"products": self.products.record(), "cosines": self.cosines.record()}


def step_alignment(gramian: LabelledGramian) -> StepAlignment:
    """Estimate the alignment from pairs of rows of different batches.

    Raises:
        OptionError: there are fewer than three batches.

    >>> rows = torch.tensor([[1.0, 0.0], [-3.0, 4.0]]).repeat(3, 1, 1)  # norms 1 and 5, cosine −0.6: 1 < 0.6 · 5
    >>> step_alignment(LabelledGramian.of_rows(rows)).products.value
    tensor([-1., 11.], dtype=torch.float64)
    """
    inner, without = gramian.different_batches(gramian.gramian)
    squares = jackknife(inner, without).diagonal()
    mean_square = jackknife(inner.mean((-2, -1)), without.mean((-2, -1)))
    resolved = (squares.low > 0) & (mean_square.low > 0)
    return StepAlignment(
        products=jackknife(inner.mean(-1), without.mean(-1)),
        cosines=jackknife(_cosines(inner), _cosines(without)).where(resolved),
    )


def _cosines(inner: Tensor) -> Tensor:
    squares = inner.diagonal(dim1=-2, dim2=-1) * inner.mean((-2, -1))[..., None]
    return inner.mean(-1) / torch.where(squares > 0, squares, torch.nan).sqrt()
