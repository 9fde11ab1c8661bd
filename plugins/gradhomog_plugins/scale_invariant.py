"""Scale-invariant scalarization: the sum of the logarithms of the losses."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, hookimpl
from gradhomog_plugins import _losses


class ScaleInvariant(Homogenizer):
    """Row i is divided by its task's loss, so that the unit of a loss does not matter.

    L = Σ_i log L_i;  ∂L/∂L_i = 1/L_i
    d = 1/N Σ_i ω_i g_i,  ω_i = (1/L_i) / mean_j (1/L_j)  (`scale="mean"`)  or  ω_i = N/L_i  (`scale="paper"`: d = ∇L)

    With `scale="mean"` this and `geometric_mean` are the same method: both weigh by 1/L_i, and differ in length only.
    Invariant to a factor of a single loss (and its row) is the direction; its length too with `scale="paper"` alone.

    Args:
        scale: see above.

    Acts on rows: the shared parameters see the combined loss, the heads of a multi-task network their own losses.

    Differentiable in rows and losses. State: none. Losses must be positive: one of zero has no finite weight, and
    raises, as does a negative one, and with `scale="paper"` one whose weight is above 1e30. Cost: O(N).

    Source: Navon et al. 2022, "Multi-Task Learning as a Bargaining Game", arXiv 2202.01017, the baseline SI.

    Deviations: (1) the mean of the weights is one by default; (2) reference code: SamsungLabs/MTL takes log(1 + L),
    which is not invariant to scale; nash-mtl allows weights in the sum: write `static(weights=[...])` before it.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("scale_invariant(scale='paper')").combine(torch.eye(2), losses=[0.5, 2.0])
    tensor([2.0000, 0.5000])
    """

    def __init__(self, scale: Literal["mean", "paper"] = "mean") -> None:
        self.scale = scale

    def mix(self, evidence: Evidence) -> Tensor:
        losses = evidence.losses
        _losses.require(losses > 0, evidence, "scale_invariant: losses must be positive, rows are divided by them")
        if self.scale == "mean":
            return _losses.inverse(losses)
        weights = evidence.tasks / losses
        _losses.require_weights(weights, evidence, "scale_invariant", "N/L")
        return weights


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=ScaleInvariant,
        summary="divides each task's row by its loss: the sum of the logarithms of the losses",
        reference="Navon et al. 2022, arXiv 2202.01017",
        traits={"differentiable", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
