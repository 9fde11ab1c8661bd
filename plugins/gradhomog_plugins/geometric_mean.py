"""Geometric mean of the losses (GLS): tasks are weighted by the inverse of their losses."""

import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl
from gradhomog_plugins import EQUIVARIANT, _losses


class GeometricMean(Homogenizer):
    """Weights proportional to 1/L_i: the derivatives of the geometric mean of the losses, divided by their mean.

        L = (Π_i L_i)^{1/N},  ∂L/∂L_i = L / (N L_i)
        d = 1/N Σ_i ω_i g_i,  ω_i = (1/L_i) / mean_j (1/L_j);  paper's scale: ω_i = L / L_i, so that d = ∇L

    Use it when losses have different units or magnitudes, so that the largest loss dominates the mean gradient. It is
    harmful where a loss approaches zero, because its task then takes nearly all weight, and it does not resolve
    conflicts.

    With the default `scale="mean"` this and `scale_invariant` are the same method, for any number of tasks; in the
    paper's scale only their lengths differ. Acts on rows: shared parameters receive the gradient of the weighted
    losses; each head of a multi-task network receives the unweighted gradient of its loss. Losses must be positive:
    zero or negative losses cause an error, and so does a weight above 1e30 in the paper's scale. Computed from
    logarithms, so that no product of losses overflows.

    Differentiable in rows and losses.

    State: none.

    Cost: O(N).

    Source: Chennupati et al. 2019, "MultiNet++", CVPR workshops, arXiv 1904.08492, the geometric loss strategy.

    Deviations: (1) The mean of the weights is one by default; in the paper the length of the step has the unit of the
    losses. (2) Reference code: LibMTL multiplies the losses, which overflows; TorchJD 0.18 accepts a loss of zero and
    then returns a gradient of NaN.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("geometric_mean").combine(torch.eye(2), losses=[1.0, 3.0])
    tensor([0.7500, 0.2500])
    """

    def mix(self, step: Step) -> Tensor:
        return _losses.exponential_weights(-_losses.positive(step, "because tasks are weighted by 1/L").log())

    def paper_scale(self, step: Step) -> Tensor:
        logarithms = step.losses.log()
        weights = torch.exp(logarithms.mean() - logarithms)
        _losses.require_at_most(weights, step, "(Π_j L_j)^{1/N} / L")
        return weights.mean()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=GeometricMean,
        summary="weights tasks by the inverse of their losses: the geometric mean of the losses",
        reference="Chennupati et al. 2019, arXiv 1904.08492",
        traits={"differentiable", "loss_scale_invariant", *EQUIVARIANT},
        needs={"losses"},
    )
