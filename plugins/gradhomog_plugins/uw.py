"""Uncertainty weighting (UW): weigh each loss by the inverse of a variance that is learnt with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, hookimpl
from gradhomog_plugins import _adam, _losses

Kind = Literal["regression", "classification"]
FACTORS = {"regression": 0.5, "classification": 1.0}


class UW(Homogenizer):
    """Row i is multiplied by the inverse of its task's variance σ_i², of which the logarithm s_i is learnt.

    L = Σ_i κ_i e^{−s_i} L_i + ½ s_i,  κ = ½ for `"regression"`, 1 for `"classification"`
    ∂L/∂L_i = κ_i e^{−s_i};  s ← Adam(s, ∂L/∂s_i = ½ − κ_i e^{−s_i} L_i);  at rest the weight is 1/(2 L_i), of any kind
    d = 1/N Σ_i ω_i g_i,  ω_i = κ_i e^{−s_i} over its mean  (`scale="mean"`)  or  N κ_i e^{−s_i}  (`"paper"`: d = ∇L)

    Args:
        kind: of the losses, `"regression"` (a squared error) or `"classification"` (a cross-entropy): one for all, or a
            dict by domain, whose entry `"*"` is for those that it does not name (an error without it). One for all
            drops out of the mean.
        lr: > 0, of the Adam that moves s after each step.
        bound: in (0, 69]; s stays in [−bound, bound]. A loss of zero would drive its weight to infinity otherwise; 10
            leaves it e¹⁰ = 22 026 times the first.
        key: state by `"slot"` (place in the batch) or by `"domain"`, which is right where a slot's domain changes from
            batch to batch, as in the strong setting.
        scale: see above.

    Acts on rows: the shared parameters see the combined loss, the heads of a multi-task network their own losses.

    Differentiable in the rows, the weights being constants: s is moved after the step. State: s and Adam's moments by
    key; two tasks of one key move it together. Losses must not be negative, as their s would go to the bound,
    nor so large (1e150) that Adam cannot square them. Cost: O(N).

    Source: Kendall et al. 2018, "Multi-Task Learning Using Uncertainty to Weigh Losses", arXiv 1705.07115, equations 7
    and 10, in s = log σ², as they advise.

    Deviations: (1) s has an Adam of its own; the paper and all reference code train it with the model's optimizer,
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

    carried = ("log_variances",)

    def __init__(
        self,
        kind: Kind | Mapping[str, Kind] = "regression",
        lr: float = 1e-3,
        bound: float = 10.0,
        key: Literal["slot", "domain"] = "slot",
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if not 0 < lr < math.inf:
            raise OptionError(f"uw: `lr` must be positive; got {lr!r}.")
        _losses.check_bound("uw", bound)
        self.kind, self.lr, self.bound, self.key, self.scale = kind, lr, bound, key, scale
        self.log_variances: dict[str, _adam.Variable] = {}

    def mix(self, evidence: Evidence) -> Tensor:
        return _losses.exponentials(self._log_weights(evidence), self.scale)

    def update(self, evidence: Evidence) -> None:
        losses = evidence.losses.cpu()
        _losses.require(losses >= 0, evidence, "uw: losses must not be negative, no variance goes with them")
        scaled, keys = self._log_weights(evidence).exp() * losses, evidence.by(self.key)
        _losses.require_slopes(scaled, evidence, "uw")
        slopes = 0.5 - scaled
        self.log_variances.update(_adam.moved(self.log_variances, keys, slopes.tolist(), self.lr, bound=self.bound))

    def _log_weights(self, evidence: Evidence) -> Tensor:
        """log κ_i − s_i, `[tasks]`."""
        if isinstance(self.kind, Mapping):
            kinds: Sequence[Kind] = [self._kind_of(self.kind, domain) for domain in evidence.by("domain")]
        else:
            kinds = [self.kind] * evidence.tasks
        factors = torch.tensor([FACTORS[kind] for kind in kinds], dtype=torch.float64)
        return factors.log() - _adam.values(self.log_variances, evidence.by(self.key))

    @staticmethod
    def _kind_of(kinds: Mapping[str, Kind], domain: str) -> Kind:
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
