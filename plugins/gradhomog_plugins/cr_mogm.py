"""CR-MOGM: another method's weights, averaged over the steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

import gradhomog
from gradhomog import ConfigError, Evidence, Homogenizer, HomogenizerSpec, NotDifferentiableError, OptionError, hookimpl


class CRMOGM(Homogenizer):
    """The weights of the step are an exponential average of those that another method has given so far.

    λ_i ← α λ_i + (1 − α) λ̂_i,  d = 1/N Σ_i λ_i g_i;  at first λ_i = λ̂_i
    λ̂_i: the share of row i in the other method's step, that is its weight, or the i-th column sum of its mixing matrix

    Weights computed on one mini-batch depend on its noise, and with that noise on the gradients that they weigh; their
    average does so less, which is what convergence to Pareto optimal points needs.

    Args:
        of: the other method, as a pipeline of one homogenizer that weighs or mixes rows: `"mgda"`,
            `"cagrad(c=0.5)"`. Its own options stand there, `scale` too.
        alpha: α in [0, 1]; 0 is the other method itself.
        key: averages by `"slot"` (place in the batch) or by `"domain"`.
        scale: accepted for uniformity: lengths are those of `of`.

    Differentiable where `of` is, with past weights as constants; with one that does not claim it, `create_graph=True`
    raises. Tasks of one key in a batch share an average, and it moves by their mean. A key that comes up for the first
    time begins with its weight in that step. State: the averages and what the other method carries. What the average
    keeps of the other's promises (no conflict, a common factor) is for each method to be seen: none is claimed.

    Source: Zhou et al. 2022, "On the Convergence of Stochastic Multi-Objective Gradient Manipulation and Beyond"
    (NeurIPS); α constant as in TorchJD 0.18, where the paper lets it rise towards 1 as the learning rate falls.

    Deviations: (1) a mixing matrix is averaged by what it makes of the step, its column sums; (2) averages by key, so
    that the number of tasks may change, where TorchJD asks for a reset.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("cr_mogm(of='mgda', alpha=0.5)")
    >>> pipe.combine(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))  # weights 1, 1
    tensor([1., 1.])
    >>> pipe.combine(torch.tensor([[2.0, 0.0], [2.0, 2.0]]))  # MGDA's are 2, 0; their average with 1, 1 is 1.5, 0.5
    tensor([2.0000, 0.5000])
    """

    carried = ("averages",)

    def __init__(
        self,
        of: str = "mgda",
        alpha: float = 0.9,
        key: Literal["slot", "domain"] = "slot",
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if not 0 <= alpha <= 1:
            raise OptionError(f"cr_mogm: `alpha` must be in [0, 1]; got {alpha!r}.")
        members = gradhomog.pipeline(of).members
        if len(members) != 1:
            raise OptionError(
                f"cr_mogm: `of` must name one homogenizer; got {of!r}. What is to act before it comes before it in the "
                "pipeline: 'static + cr_mogm(of=\"mgda\")'."
            )
        self._inner = members[0]  # with the checks of what it returns
        overrides = self._inner.homogenizer.overrides
        others = [stage for stage in ("attach", "begin", "transform", "rows") if overrides(stage)]
        if others or not overrides("mix"):
            raise OptionError(
                f"cr_mogm: `of` must name a homogenizer that weighs or mixes rows and does nothing else; {of!r} "
                f"{f'has the stage {others[0]!r}' if others else 'does not'}."
            )
        self.needs = self._inner.needs
        self.of, self.alpha, self.key, self.scale = of, alpha, key, scale
        self.averages: dict[str, float] = {}
        self._weights: list[float] = []  # between `mix` and `update` of one step

    def mix(self, evidence: Evidence) -> Tensor:
        spec = self._inner.spec
        if torch.is_grad_enabled() and (spec is None or "differentiable" not in spec.traits):
            raise NotDifferentiableError(
                f"cr_mogm: {self.of!r} is not differentiable, so create_graph=True would cut the graph in silence. "
                "Use create_graph=False, or an `of` that claims 'differentiable'."
            )
        mixing = self._inner.mix(evidence)
        shares = mixing if mixing.dim() == 1 else mixing.sum(dim=0)
        held = [self.averages.get(key, math.nan) for key in evidence.by(self.key)]
        past = torch.tensor(held, dtype=torch.float64, device=shares.device)
        weights = averaged(past, shares, self.alpha)
        self._weights = weights.tolist()
        return weights

    def update(self, evidence: Evidence) -> None:
        by_key: dict[str, list[float]] = {}
        for key, weight in zip(evidence.by(self.key), self._weights, strict=True):
            by_key.setdefault(key, []).append(weight)
        self.averages.update({key: sum(weights) / len(weights) for key, weights in by_key.items()})
        if self._inner.homogenizer.overrides("update"):
            self._inner.update(evidence)

    def measured(self) -> Mapping[str, Any]:
        return self._inner.measured()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "of": self.of, "inner": self._inner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("of") != self.of:
            raise ConfigError(f"cr_mogm: the state is of `of` {state.get('of')!r}; this one is of {self.of!r}.")
        super().load_state_dict({name: value for name, value in state.items() if name not in ("of", "inner")})
        self._inner.load_state_dict(state["inner"])


def averaged(past: Tensor, shares: Tensor, alpha: float) -> Tensor:
    """α · past + (1 − α) · shares, `[tasks]`; of a task without a past, NaN, its share as it is."""
    return torch.where(past.isnan(), shares, torch.lerp(shares, past.nan_to_num(), alpha))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=CRMOGM,
        summary="another method's weights, averaged over the steps",
        reference="Zhou et al. 2022, On the Convergence of Stochastic Multi-Objective Gradient Manipulation, NeurIPS",
        traits={"differentiable", "stateful"},
        needs={"losses", "norms", "gramian", "rows", "features"},
    )
