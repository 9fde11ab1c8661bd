"""CR-MOGM: the weights of another method, averaged over the steps."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval

from gradhomog import Homogenizer, HomogenizerSpec, NotDifferentiableError, StageResult, Step, hookimpl, keyed
from gradhomog_plugins._inner_method import inner_pipeline


class CRMOGM(Homogenizer):
    """Exponential moving averages, over the steps, of the weights of another method.

        λ_i ← α λ_i + (1 − α) λ̂_i;  in the first step λ_i = λ̂_i
        λ̂_i: the weight of row i in the other method's step, or the i-th column sum of its mixing matrix
        d = 1/N Σ_i λ_i g_i

    Args:
        method: the other method: the name of one homogenizer that acts by `mix` alone, for example `"mgda"` or
            `"cagrad(c=0.5)"`; it may have options, including `scale`.
        alpha: α; 0 is the other method itself.

    Use it when the weights of a method such as `mgda` vary strongly from step to step because the gradients of a
    mini-batch are noisy. Weights of one mini-batch are correlated with the noise of the gradients that they multiply;
    averaged weights are less correlated with it, which convergence to Pareto optimal points requires. It is of no use
    with full batches, and averages may lose properties of the other method, such as the absence of conflicts.

    The average of a new key is its weight in its first step. Traits of the other method, such as `non_conflicting` and
    `scale_equivariant`, are not claimed.

    Differentiable if the other method claims it, with past weights as constants; otherwise `create_graph=True` raises
    an error.

    State: the averages, and the state of the other method.

    Cost: that of the other method, and O(N).

    Source: Zhou et al. 2022, "On the Convergence of Stochastic Multi-Objective Gradient Manipulation and Beyond"
    (NeurIPS); α is constant as in TorchJD 0.18; in the paper it rises towards 1 as the learning rate falls.

    Deviations: (1) A mixing matrix is averaged by its column sums, which determine the step. (2) Averages by key, so
    that the number of tasks may change; TorchJD requires a reset.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("cr_mogm(method='mgda', alpha=0.5)")
    >>> pipe.combine(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))  # weights 1, 1
    tensor([1., 1.])
    >>> pipe.combine(torch.tensor([[2.0, 0.0], [2.0, 2.0]]))  # MGDA's are 2, 0; their average with 1, 1 is 1.5, 0.5
    tensor([2.0000, 0.5000])
    """

    state_names = {"method": str, "averages": dict[str, float], "inner": Homogenizer}

    def __init__(self, method: str = "mgda", alpha: Annotated[float, Interval(ge=0, le=1)] = 0.9) -> None:
        advice = "Put others before it in the pipeline: 'static + cr_mogm(method=\"mgda\")'."
        [member] = inner_pipeline("cr_mogm", method, ["mix"], advice).members
        self.method, self.alpha = method, alpha
        self.state_names = {**type(self).state_names, "method": Literal[method]}  # of another method is not loaded
        self.averages: dict[str, float] = {}
        self.inner, self.needs = member.homogenizer, member.needs
        self._mix = member.act  # validated, in the scale of the option `scale` in `method`
        self._differentiable = member.spec is not None and "differentiable" in member.spec.traits

    def mix(self, step: Step) -> StageResult:
        if torch.is_grad_enabled() and not self._differentiable:
            raise NotDifferentiableError(
                f"cr_mogm: {self.method!r} is not differentiable, so create_graph=True would omit "
                "the derivatives of its weights. Use create_graph=False, or a `method` that claims 'differentiable'."
            )
        mixing, aux, converged = self._mix(step.view(self.inner))
        current = mixing if mixing.dim() == 1 else mixing.sum(dim=0)
        past = keyed.read(self.averages, step.names, math.nan)
        weights = torch.where(past.isnan(), current, torch.lerp(current, past.nan_to_num(), self.alpha))
        return StageResult(weights, aux=(weights, aux), converged=converged)

    def update(self, step: Step) -> dict[str, Any]:
        weights, aux = step.aux
        averages = keyed.write(self.averages, step.names, weights)
        if not self.inner.overrides("update"):
            return {"averages": averages}
        return {"averages": averages, "inner": self.inner.update(step.view(self.inner, aux))}

    def measured(self, step: Step) -> Mapping[str, float | Sequence[float]]:
        _, aux = step.aux
        return self.inner.measured(step.view(self.inner, aux))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=CRMOGM,
        summary="the weights of another method, averaged over the steps",
        reference="Zhou et al. 2022, On the Convergence of Stochastic Multi-Objective Gradient Manipulation, NeurIPS",
        traits={"differentiable", "stateful"},
        needs={"losses", "norms", "gramian", "jacobian", "features", "kernel_traces"},
    )
