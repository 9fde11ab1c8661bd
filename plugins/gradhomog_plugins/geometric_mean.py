"""Geometric mean of the losses (GLS): each task weighs by the inverse of its loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, hookimpl
from gradhomog_plugins import _losses


class GeometricMean(Homogenizer):
    """Row i is weighed as the derivative of the geometric mean of all losses by L_i weighs it.

    L = (Π_i L_i)^{1/N};  ∂L/∂L_i = L / (N L_i)
    d = 1/N Σ_i ω_i g_i,  ω_i = (1/L_i) / mean_j (1/L_j)  (`scale="mean"`)  or  ω_i = L / L_i  (`scale="paper"`: d = ∇L)

    With `scale="mean"` this and `scale_invariant` are the same method: both weigh by 1/L_i, and differ in length only.

    Args:
        scale: see above.

    Acts on rows: the shared parameters see the combined loss, the heads of a multi-task network their own losses.

    Differentiable in rows and losses. State: none. Losses must be positive: one of zero has no finite weight, and
    raises, as does a negative one, and with `scale="paper"` one whose weight is above 1e30. Computed from logarithms:
    no product of losses overflows. Cost: O(N).

    Source: Chennupati et al. 2019, "MultiNet++", CVPR workshops, arXiv 1904.08492, the geometric loss strategy.

    Deviations: (1) the mean of the weights is one by default; the paper's step is as long as the losses, in their unit,
    make it; (2) reference code: LibMTL multiplies the losses, which overflows; TorchJD 0.18 takes a loss of zero, and
    its gradient is NaN then.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("geometric_mean").combine(torch.eye(2), losses=[1.0, 3.0])
    tensor([0.7500, 0.2500])
    """

    def __init__(self, scale: Literal["mean", "paper"] = "mean") -> None:
        self.scale = scale

    def mix(self, evidence: Evidence) -> Tensor:
        losses = evidence.losses
        _losses.require(losses > 0, evidence, "geometric_mean: losses must be positive, tasks weigh by their inverses")
        if self.scale == "mean":
            return _losses.inverse(losses)
        weights = paper_weights(losses)
        _losses.require_weights(weights, evidence, "geometric_mean", "(Π_j L_j)^{1/N} / L")
        return weights


def paper_weights(losses: Tensor) -> Tensor:
    """N times the derivatives of the geometric mean: (Π_j L_j)^{1/N} / L_i, `[tasks]`."""
    logarithms = losses.log()
    return torch.exp(logarithms.mean() - logarithms)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=GeometricMean,
        summary="weighs tasks as the geometric mean of the losses does, by the inverse of the loss",
        reference="Chennupati et al. 2019, arXiv 1904.08492",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
