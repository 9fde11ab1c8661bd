"""ReLoBRaLo: relative loss balancing with random lookback, for losses that should fall at the same relative rate."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from annotated_types import Gt, Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, StageResult, Step, hookimpl, keyed
from gradhomog_plugins import _losses

# The ratio of a loss that rises from zero: so large that its task gets all weight, and still finite.
LARGEST_RATIO = 1e6


class ReLoBRaLo(Homogenizer):
    """Averaged weights from the ratios of the losses to those of the previous step and, at random, of the first step.

        λ̂_i(t, t') = N softmax_i(L_i(t) / (τ L_i(t')))
        λ(t) = α [ρ λ(t−1) + (1 − ρ) λ̂(t, 0)] + (1 − α) λ̂(t, t−1),  ρ ~ Bernoulli
        d = 1/N Σ_i ω_i g_i,  ω_i = λ_i / mean_j λ_j;  paper's scale: ω_i = N λ_i, so that d = Σ_i λ_i g_i

    Args:
        alpha: α, decay of the averaged weights. Between two lookbacks the weights move by 1 − α per step; with the
            defaults they are nearly those of the last lookback (of the second step before the first one), which is a
            single noisy batch. Use a smaller α on mini-batches.
        rho: E[ρ], the probability that a step keeps the averaged weights. In the other steps they start again from
            λ̂(t, 0), the lookback.
        temperature: τ; the larger, the more equal the weights.
        seed: seed of ρ.

    Use it when losses have different units and some fall slower than others relative to their start, as the terms of
    physics-informed networks do, and N backward passes are too expensive: it reads losses only. It is harmful where a
    loss cannot fall further, because its weight grows, and it does not resolve conflicts. With noise between batches
    use a larger `temperature`: at τ = 0.1, a loss that is 10 % higher than before by chance has λ̂ larger by a factor
    of e.

    Acts on rows: shared parameters receive the gradient of the weighted losses; each head of a multi-task network
    receives the unweighted gradient of its loss. One ρ for all tasks. A key has L(t)/L(t') = 1 in its first step, and
    in its second step λ = λ̂(t, t−1). While other losses fall, a new key therefore has the largest weight. Losses must
    not be negative. A loss that is zero in step t' has the ratio one if it is still zero. A ratio counts as at most
    1e6, also that of a loss that rises from zero; for τ far below 1e6 its task gets all weight of λ̂.

    Differentiable in rows and losses, with earlier losses and weights as constants.

    State: by key, the first and the last loss, and λ.

    Cost: O(N).

    Source: Bischof and Kraus 2021, "Multi-Objective Loss Balancing for Physics-Informed Deep Learning", arXiv
    2110.09813, section 3; the first two steps: the authors' code.

    Deviations: (1) The mean of the weights is one by default; in the paper their sum is N, which is the same for tasks
    that occur in all steps. (2) The defaults are those of the authors' article with code for Keras; their repository
    has τ = 1 and E[ρ] = 1, PhysicsNeMo and neuraloperator have α = 0.95, E[ρ] = 0.99 and τ = 1. (3) No constant is
    added to τ L(t'), as 1e-12 in the authors' code and 1e-8 in PhysicsNeMo, where losses far below it have no effect;
    instead, ratios have the bound 1e6. (4) PhysicsNeMo starts the average at λ = 1 and not at the second step's λ̂. (5)
    In the first step the authors' repository (src/train.py) has L(0) = L(t−1) = 1, so that its weights depend on the
    units of the losses; here all ratios are 1. From the second step on, both have the losses of the first step as L(0).

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("relobralo(alpha=0.5, temperature=1)")
    >>> for losses in ([1.0, 100.0], [0.5, 100.0], [0.25, 100.0]):
    ...     result = pipe.homogenize(torch.eye(2), torch.tensor(losses))
    >>> result.weights  # the second loss has not changed
    tensor([0.7551, 1.2449], dtype=torch.float64)
    """

    state_names = dict.fromkeys(("first", "last", "weights"), dict[str, float])

    def __init__(
        self,
        alpha: Annotated[float, Interval(ge=0, le=1)] = 0.999,
        rho: Annotated[float, Interval(ge=0, le=1)] = 0.99,
        temperature: Annotated[float, Gt(0)] = 0.1,
        seed: int = 0,
    ) -> None:
        self.alpha, self.rho, self.temperature, self.seed = alpha, rho, temperature, seed
        self.first: dict[str, float] = {}  # L(0)
        self.last: dict[str, float] = {}  # L(t−1)
        self.weights: dict[str, float] = {}  # λ(t−1)

    def mix(self, step: Step) -> StageResult:
        _losses.nonnegative(step, "because weights use their ratios")
        balanced = self._balanced(step, self.last)
        if bool(torch.rand((), generator=step.generator, dtype=torch.float64) < self.rho):
            weights = keyed.read(self.weights, step.names, torch.nan)
            history = torch.where(weights.isnan(), balanced, weights)
        else:
            history = self._balanced(step, self.first)
        weights = self.alpha * history + (1 - self.alpha) * balanced
        return StageResult(weights / weights.mean(), aux=weights)

    def paper_scale(self, step: Step) -> Tensor:
        total: Tensor = step.aux.sum()
        return total

    def update(self, step: Step) -> dict[str, Any]:
        keys, losses = step.names, step.losses
        last = keyed.write({}, keys, losses)
        weights = {key: weight for key, weight in keyed.write({}, keys, step.aux).items() if key in self.last}
        return {"first": {**last, **self.first}, "last": {**self.last, **last}, "weights": {**self.weights, **weights}}

    def _balanced(self, step: Step, earlier: Mapping[str, float]) -> Tensor:
        """Return λ̂(t, t'), `[tasks]`, for the losses of step t' by key."""
        keys = step.names
        known = torch.tensor([key in earlier for key in keys])
        losses = _losses.mean_by_key(keys, step.losses)
        ratios = torch.where(known, loss_ratios(losses, keyed.read(earlier, keys, 1.0)), 1.0)
        return _losses.exponential_weights((ratios - ratios.max().detach()) / self.temperature)


def loss_ratios(losses: Tensor, references: Tensor) -> Tensor:
    """Return L/L', `[tasks]`, at most 1e6; 1 where both are zero."""
    zero = references == 0
    ratios = losses / torch.where(zero, 1.0, references)
    return torch.where(zero, torch.where(losses == 0, 1.0, LARGEST_RATIO), ratios).clamp(max=LARGEST_RATIO)


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=ReLoBRaLo,
        summary="balances the relative decrease of losses since the previous and, at random, since the first step",
        reference="Bischof and Kraus 2021, arXiv 2110.09813, section 3",
        # Not "stochastic": with E[ρ] = 0.99 most seeds agree in the four steps that the kit compares.
        traits={"differentiable", "stateful", "loss_scale_invariant", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
