"""IMTL-L: learn a factor per task that scales its loss to one."""

from typing import Annotated, Any

from annotated_types import Gt, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl, keyed
from gradhomog_plugins import _losses


class IMTLL(Homogenizer):
    """Weights e^{s_i} that are learned so that all weighted losses become one.

        L = Σ_i e^{s_i} L_i − s_i,  ∂L/∂L_i = e^{s_i}
        s ← Adam(s, ∂L/∂s_i = e^{s_i} L_i − 1), which converges to e^{s_i} = 1/L_i
        d = 1/N Σ_i ω_i g_i,  ω_i = e^{s_i} / mean_j e^{s_j};  paper's scale: ω_i = N e^{s_i}, so that d = ∇L

    Args:
        lr: learning rate of the Adam that updates s after each step.
        bound: s stays in [−bound, bound]. Without it, a loss of zero drives its weight to infinity; 10 limits the
            weight to e¹⁰ = 22 026 times its initial value. At most 69, because e⁶⁹ ≈ 1e30 is the largest weight
            accepted.

    Use it when losses have different units or magnitudes, and weights should follow their average over many steps
    rather than the loss of each batch, as in `scale_invariant`. In short training with a small `lr` the weights hardly
    change. It is harmful where a loss approaches zero, because its weight grows to the bound, and it does not resolve
    conflicts.

    The loss is half of that of `uw(kind="regression")` at −s. Adam is invariant to the factor two, so with the default
    `scale="mean"` and with one `lr` the two are the same method; in the paper's scale the step of this one is twice as
    long. Acts on rows: shared parameters receive the gradient of the weighted losses; each head of a multi-task network
    receives the unweighted gradient of its loss. Losses must not be negative (s would reach the bound), and their
    squares in Adam must not overflow (from 1e150).

    Differentiable in the rows, with the weights as constants, because s is updated after the step.

    State: s and Adam's moments, by key.

    Cost: O(N).

    Source: Liu et al. 2021, "Towards Impartial Multi-task Learning", ICLR, section 3.2, loss balance.

    Deviations: (1) A separate Adam updates s. The paper and all reference code train it with the model's optimizer,
    whose weight decay then pulls the weights to one. (2) The bound. (3) The mean of the weights is one by default. (4)
    LibMTL has it only together with IMTL-G. Here they are `imtl_l` and `imtl_g`, and `imtl_l + imtl_g` is the paper's
    hybrid for the shared parameters. `imtl_l(scale="paper") + imtl_g` is N times LibMTL's, whose rows are those of
    e^{s_i} L_i: in the paper's scale `imtl_l` has N e^{s_i}, because the step is the mean of the rows, but the step of
    `imtl_g` is a weighted mean already.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("imtl_l(lr=0.1, scale='paper')")
    >>> for _ in range(200):
    ...     result = pipe.homogenize(torch.eye(2), torch.tensor([0.5, 2.0]))
    >>> result.weights / 2  # 1/L
    tensor([2.0000, 0.5000], dtype=torch.float64)
    """

    state_names = {"log_scales": dict[str, keyed.Moments]}

    def __init__(
        self, lr: Annotated[float, Gt(0)] = 1e-3, bound: Annotated[float, Interval(gt=0, le=69)] = 10.0
    ) -> None:
        self.lr, self.bound = lr, bound
        self.log_scales: dict[str, keyed.Moments] = {}

    def mix(self, step: Step) -> Tensor:
        return _losses.exponential_weights(keyed.values(self.log_scales, step.names))

    def paper_scale(self, step: Step) -> Tensor:
        return keyed.values(self.log_scales, step.names).exp().sum()

    def update(self, step: Step) -> dict[str, Any]:
        losses, keys = _losses.nonnegative(step, "because no factor scales them to one"), step.names
        weighted = keyed.values(self.log_scales, keys).exp() * losses
        _losses.require_squares(weighted, step)
        return {"log_scales": keyed.adam(self.log_scales, keys, weighted - 1, self.lr, bound=self.bound)}


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=IMTLL,
        summary="learns a factor for each task that scales its loss to one",
        reference="Liu et al. 2021, Towards Impartial Multi-task Learning, ICLR, section 3.2",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
