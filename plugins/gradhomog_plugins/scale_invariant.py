"""Scale-invariant scalarization: the sum of the logarithms of the losses."""

from __future__ import annotations

from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl
from gradhomog_plugins import _losses


class ScaleInvariant(Homogenizer):
    """Weights inverse to the losses, so that the unit of a loss does not matter: the gradient of Σ_i log L_i.

    L = Σ_i log L_i;  ∂L/∂L_i = 1/L_i
    d = 1/N Σ_i ω_i g_i,  ω_i = (1/L_i) / mean_j (1/L_j);  the paper's scale: ω_i = N/L_i, so that d = ∇L

    In the mean scale this and `geometric_mean` are the same method: both weigh by 1/L_i, and differ in length only. A
    factor of a single loss (and its row) does not change the direction; in the paper's scale not its length either.

    Acts on rows: the shared parameters receive the combined loss, the heads of a multi-task network their own losses.

    Differentiable in rows and losses. State: none. Losses must be positive: one of zero has no finite weight and
    raises, as does a negative one, and in the paper's scale one with a weight above 1e30. Cost: O(N).

    Source: Navon et al. 2022, "Multi-Task Learning as a Bargaining Game", arXiv 2202.01017, the baseline SI.

    Deviations: (1) the mean of the weights is one by default; (2) reference code: SamsungLabs/MTL takes log(1 + L),
    which is not invariant to scale; nash-mtl allows weights in the sum: write `static(weights=[...])` before it.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("scale_invariant(scale='paper')").combine(torch.eye(2), losses=[0.5, 2.0])
    tensor([2.0000, 0.5000])
    """

    def mix(self, step: Step) -> Tensor:
        losses = step.losses
        _losses.require(losses > 0, step, "scale_invariant: losses must be positive, rows are divided by them")
        return _losses.exponential_weights(-losses.log())

    def paper_scale(self, step: Step) -> Tensor:
        weights = step.tasks / step.losses
        _losses.require_weights(weights, step, "scale_invariant", "N/L")
        return weights.mean()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=ScaleInvariant,
        summary="divides each task's row by its loss: the sum of the logarithms of the losses",
        reference="Navon et al. 2022, arXiv 2202.01017",
        traits={
            "differentiable",
            "permutation_equivariant",
            "loss_scale_invariant",
            "scale_equivariant",
            "rotation_equivariant",
        },
        needs={"losses"},
    )
