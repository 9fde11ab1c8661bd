"""Uncertainty weighting (UW): weight each loss by the inverse of a learned variance."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl, keyed
from gradhomog_plugins import _losses, _per_task

Kind = Literal["regression", "classification"]
LOG_FACTORS = {"regression": math.log(0.5), "classification": 0.0}


class UW(Homogenizer):
    """Weights inversely proportional to the tasks' variances σ_i², whose logarithms s_i are learned.

        L = Σ_i κ_i e^{−s_i} L_i + ½ s_i,  κ = ½ for "regression", 1 for "classification"
        s ← Adam(s, ∂L/∂s_i = ½ − κ_i e^{−s_i} L_i), which converges to ∂L/∂L_i = κ_i e^{−s_i} = 1/(2 L_i)
        d = 1/N Σ_i ω_i g_i,  ω_i = κ_i e^{−s_i} / mean_j κ_j e^{−s_j};  paper's scale: ω_i = N κ_i e^{−s_i}, d = ∇L

    Args:
        kind: kind of the losses, `"regression"` (a squared error) or `"classification"` (a cross-entropy): one for all,
            or a dict by name with the entry `"*"` for other names (an error without it). If all tasks have the same
            kind, κ cancels in ω, except with `scale="paper"`.
        lr: learning rate of the Adam that updates s after each step.
        bound: s stays in [−bound, bound]. Without it, a loss of zero drives its weight to infinity; 10 limits the
            weight to e¹⁰ = 22 026 times its initial value. At most 69, because e⁶⁹ ≈ 1e30 is the largest weight
            accepted.

    Use it when losses have different units or noise levels, and weights should follow their average over many steps. In
    short training with a small `lr` the weights hardly change. It is harmful where a task is difficult rather than
    noisy, because its high loss lowers its weight, and it does not resolve conflicts.

    Acts on rows: shared parameters receive the gradient of the weighted losses; each head of a multi-task network
    receives the unweighted gradient of its loss. Losses must not be negative (s would reach the bound), and their
    squares in Adam must not overflow (from 1e150).

    Differentiable in the rows, with the weights as constants, because s is updated after the step.

    State: s and Adam's moments, by key.

    Cost: O(N).

    Source: Kendall et al. 2018, "Multi-Task Learning Using Uncertainty to Weigh Losses", arXiv 1705.07115, equations 7
    and 10, in s = log σ², as they advise.

    Deviations: (1) A separate Adam updates s. The paper and all reference code train it with the model's optimizer,
    whose weight decay then pulls the weights to one. (2) The bound. (3) s starts at 0; at −0.5 in LibMTL and MTAN,
    which scales all weights equally. (4) `kind`; SamsungLabs/MTL uses the form for classification for every task,
    TorchJD and nash-mtl that for regression. (5) The mean of the weights is one by default.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("uw(lr=0.1)")
    >>> for _ in range(200):
    ...     result = pipe.homogenize(torch.eye(2), torch.tensor([0.5, 2.0]))
    >>> result.weights  # as 1/L
    tensor([1.6000, 0.4000], dtype=torch.float64)
    """

    state_names = {"log_variances": dict[str, keyed.Moments]}

    def __init__(
        self,
        kind: Kind | Mapping[str, Kind] = "regression",
        lr: Annotated[float, Gt(0)] = 1e-3,
        bound: Annotated[float, Interval(gt=0, le=69)] = 10.0,
    ) -> None:
        self.kind, self.lr, self.bound = kind, lr, bound
        self.log_variances: dict[str, keyed.Moments] = {}

    def mix(self, step: Step) -> Tensor:
        return _losses.exponential_weights(self._log_weights(step))

    def paper_scale(self, step: Step) -> Tensor:
        return self._log_weights(step).exp().sum()

    def update(self, step: Step) -> dict[str, Any]:
        losses = _losses.nonnegative(step, "because they have no variance")
        weighted = self._log_weights(step).exp() * losses
        _losses.require_squares(weighted, step)
        keys = step.names
        return {"log_variances": keyed.adam(self.log_variances, keys, 0.5 - weighted, self.lr, bound=self.bound)}

    def _log_weights(self, step: Step) -> Tensor:
        """Return log κ_i − s_i, `[tasks]`."""
        if isinstance(self.kind, Mapping):
            factors = [LOG_FACTORS[kind] for kind in _per_task.entries("kind", self.kind, step)]
        else:
            factors = [LOG_FACTORS[self.kind]] * step.tasks
        return torch.tensor(factors, dtype=torch.float64) - keyed.values(self.log_variances, step.names)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=UW,
        summary="weights losses by the inverse of learned variances (uncertainty weighting)",
        reference="Kendall et al. 2018, arXiv 1705.07115, equations 7 and 10",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
