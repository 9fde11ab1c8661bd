"""Uncertainty weighting (UW): each loss is weighted by the inverse of a variance that is learnt with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, OptionError, Step, hookimpl, keyed
from gradhomog_plugins import _losses

Kind = Literal["regression", "classification"]
LOG_FACTORS = {"regression": math.log(0.5), "classification": 0.0}


class UW(Homogenizer):
    """Weights inverse to the tasks' variances σ_i², whose logarithms s_i are learnt.

    L = Σ_i κ_i e^{−s_i} L_i + ½ s_i,  κ = ½ for `"regression"`, 1 for `"classification"`
    ∂L/∂L_i = κ_i e^{−s_i};  s ← Adam(s, ∂L/∂s_i = ½ − κ_i e^{−s_i} L_i);  at rest ∂L/∂L_i = 1/(2 L_i)
    d = 1/N Σ_i ω_i g_i,  ω_i = κ_i e^{−s_i} over its mean;  the paper's scale: N κ_i e^{−s_i}, so that d = ∇L

    Args:
        kind: of the losses, `"regression"` (a squared error) or `"classification"` (a cross-entropy): one for all, or a
            dict by domain, whose entry `"*"` is for those that it does not name (an error without it). One for all
            drops out of the mean.
        lr: of the Adam that moves s after each step.
        bound: s stays in [−bound, bound]. Without it a loss of zero drives its weight to infinity; 10 limits the weight
            to e¹⁰ = 22 026 times its initial value. At most 69, as e⁶⁹ ≈ 1e30 is the largest weight accepted.
        key: state by `"slot"` (place in the batch) or by `"domain"`; use it if a slot's domain changes between batches.

    Acts on rows: the shared parameters receive the combined loss, the heads of a multi-task network their own losses.

    Differentiable in the rows, with the weights as constants: s moves after the step. State: s and Adam's moments by
    key. Losses must be neither negative (s would move to the bound) nor so large (1e150) that their squares in Adam
    overflow. Cost: O(N).

    Source: Kendall et al. 2018, "Multi-Task Learning Using Uncertainty to Weigh Losses", arXiv 1705.07115, equations 7
    and 10, in s = log σ², as they advise.

    Deviations: (1) a separate Adam updates s; the paper and all reference code train it with the model's optimizer,
    whose weight decay then pulls the weights to one; (2) the bound; (3) s begins at 0; at −0.5 in LibMTL and MTAN,
    which scales all weights alike; (4) SamsungLabs/MTL takes the form for classification for every task, TorchJD and
    nash-mtl that for regression; (5) the mean of the weights is one by default.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("uw(lr=0.1)")
    >>> for _ in range(200):
    ...     result = pipe.homogenize(torch.eye(2), torch.tensor([0.5, 2.0]))
    >>> result.weights  # as 1/L
    tensor([1.6000, 0.4000], dtype=torch.float64)
    """

    state_names = ("log_variances",)

    def __init__(
        self,
        kind: Kind | Mapping[str, Kind] = "regression",
        lr: Annotated[float, Gt(0)] = 1e-3,
        bound: Annotated[float, Interval(gt=0, le=69)] = 10.0,
        key: Literal["slot", "domain"] = "slot",
    ) -> None:
        self.kind, self.lr, self.bound, self.key = kind, lr, bound, key
        self.log_variances: dict[str, keyed.Moments] = {}

    def mix(self, step: Step) -> Tensor:
        return _losses.exponential_weights(self._log_weights(step))

    def paper_scale(self, step: Step) -> Tensor:
        return self._log_weights(step).exp().sum()

    def update(self, step: Step) -> dict[str, Any]:
        losses = step.losses.cpu()
        _losses.require(losses >= 0, step, "uw: losses must not be negative, they have no variance")
        weighted = self._log_weights(step).exp() * losses
        _losses.require_squares(weighted, step, "uw")
        keys = step.by(self.key)
        return {"log_variances": keyed.adam(self.log_variances, keys, 0.5 - weighted, self.lr, bound=self.bound)}

    def _log_weights(self, step: Step) -> Tensor:
        """log κ_i − s_i, `[tasks]`."""
        if isinstance(self.kind, Mapping):
            factors = [LOG_FACTORS[kind_of(domain, self.kind)] for domain in step.by("domain")]
        else:
            factors = [LOG_FACTORS[self.kind]] * step.tasks
        return torch.tensor(factors, dtype=torch.float64) - keyed.values(self.log_variances, step.by(self.key))


def kind_of(domain: str, kinds: Mapping[str, Kind]) -> Kind:
    """The kind of a domain's losses.

    Raises:
        OptionError: it is not among `kinds`, and there is no entry `"*"`.
    """
    found = kinds.get(domain, kinds.get("*"))
    if found is None:
        raise OptionError(
            f"uw: `kind` must name every domain, or have an entry '*' for the others; {domain!r} is not among "
            f"{', '.join(kinds)}."
        )
    return found


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=UW,
        summary="weighs losses by the inverse of a variance that is learnt with them",
        reference="Kendall et al. 2018, arXiv 1705.07115, equations 7 and 10",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
