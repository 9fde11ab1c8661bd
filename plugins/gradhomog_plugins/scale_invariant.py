"""Scale-invariant scalarization: the sum of the logarithms of the losses."""

from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl
from gradhomog_plugins import EQUIVARIANT, _losses


class ScaleInvariant(Homogenizer):
    """Weights inversely proportional to the losses, independent of their units: the gradient of Σ_i log L_i.

        L = Σ_i log L_i,  ∂L/∂L_i = 1/L_i
        d = 1/N Σ_i ω_i g_i,  ω_i = (1/L_i) / mean_j (1/L_j);  paper's scale: ω_i = N/L_i, so that d = ∇L

    Use it when losses have different units or magnitudes, so that the largest loss dominates the mean gradient; it is
    stateless and has no option. It is harmful where a loss approaches zero, because its task then takes nearly all
    weight, and it does not resolve conflicts. On functions of different magnitude its error was a fifth lower, not
    significant after correction (docs/results/first-comparison.md).

    With the default `scale="mean"` this and `geometric_mean` are the same method, for any number of tasks; in the
    paper's scale only their lengths differ. A factor of a single loss (and its row) does not change the direction; in
    the paper's scale it does not change the length either. Acts on rows: shared parameters receive the gradient of the
    weighted losses; each head of a multi-task network receives the unweighted gradient of its loss. Losses must be
    positive: zero or negative losses cause an error, and so does a weight above 1e30 in the paper's scale.

    Differentiable in rows and losses.

    State: none.

    Cost: O(N).

    Source: Navon et al. 2022, "Multi-Task Learning as a Bargaining Game", arXiv 2202.01017, the baseline SI.

    Deviations: (1) The mean of the weights is one by default. (2) Reference code: SamsungLabs/MTL uses log(1 + L),
    which is not invariant to scale; nash-mtl allows weights in the sum: use `static(weights=[...])` after it.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("scale_invariant(scale='paper')").combine(torch.eye(2), losses=[0.5, 2.0])
    tensor([2.0000, 0.5000])
    """

    def mix(self, step: Step) -> Tensor:
        return _losses.exponential_weights(-_losses.positive(step, "because rows are divided by them").log())

    def paper_scale(self, step: Step) -> Tensor:
        weights = step.tasks / step.losses
        _losses.require_at_most(weights, step, "N/L")
        return weights.mean()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=ScaleInvariant,
        summary="divides each gradient by its loss: the sum of the logarithms of the losses",
        reference="Navon et al. 2022, arXiv 2202.01017",
        traits={"differentiable", "loss_scale_invariant", *EQUIVARIANT},
        needs={"losses"},
    )
