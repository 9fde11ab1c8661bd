"""SoftAdapt: more weight to tasks whose losses rise, or fall slowly, from step to step."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, Step, hookimpl, keyed
from gradhomog_plugins import _losses


class SoftAdapt(Homogenizer):
    """Weights from a softmax of the rates of change of the losses, which are finite differences over the last steps.

        s_i = Σ_{k=1}^{n} ∇ᵏL_i(t) / k,  ∇L(t) = L(t) − L(t−1),  ∇ᵏ = ∇∇ᵏ⁻¹
        original: α = softmax(β s);  normalized: α = softmax(β s / Σ_j |s_j|)
        loss_weighted: α_i = L̄_i e^{β s_i} / Σ_j L̄_j e^{β s_j},  L̄_i: the mean of L_i over the n + 1 steps of s_i
        d = Σ_i α_i g_i

    Args:
        variant: `"original"`, `"normalized"` or `"loss_weighted"`, as in the formula.
        beta: β. Above zero, the task with the worst rate gets the largest weight; below zero, the task with the best;
            at zero all weights are equal (or L̄). In units of 1/loss, except for `"normalized"`.
        order: n, the accuracy of the finite differences; 1 is L_i(t) − L_i(t−1).

    Use it when losses fall at different rates on full batches, as in physics-informed networks, and N backward passes
    are too expensive: it reads losses only. It is of no use where the noise between batches exceeds the change of the
    losses in a step (`dwa` compares means over many steps), and it does not resolve conflicts. With β = 0.1 and losses
    that change by less than one in a step, the weights of `"original"` differ by at most 22 %; `"normalized"` depends
    on the ratios of the rates alone.

    Acts on rows: shared parameters receive the gradient of the weighted losses; each head of a multi-task network
    receives the unweighted gradient of its loss. A key that has occurred in k < n earlier steps has n = k, and in its
    first step s = 0, the rate of a constant loss: while other losses fall and β > 0, it has the largest weight (except
    for `"loss_weighted"`, if its loss is smaller). Losses may have any sign, but must not be negative for
    `"loss_weighted"`. If all rates or all losses are zero, their weights are equal.

    Differentiable in rows and losses, with earlier losses as constants.

    State: by key, the losses of the last n steps in which the key occurred.

    Cost: O(N n²).

    Source: Heydari, Thompson and Mehmood 2019, "SoftAdapt", arXiv 1912.12355, section 3.1; the authors' code, package
    softadapt.

    Deviations: (1) The rate is that of the newest loss. The authors' code has the coefficients of forward differences,
    which for n > 1 give the rate of the oldest loss of the window. (2) `"normalized"` divides by Σ|s|. The authors'
    code divides by Σ s, which is negative while the losses fall, so that β changes its sign and the fastest task gets
    the largest weight. (3) The current loss is part of s; the authors' code updates the weights between epochs, from
    stored losses. (4) No 1e-8 in the denominators. (5) Reference code: PhysicsNeMo has another rate, L(t)/L(t−1) with β
    = 1, whose weights are those of `dwa(period=1, temperature=1)` one step later.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("softadapt(variant='normalized', beta=2)")
    >>> for losses in ([1.0, 1.0], [0.9, 0.6]):
    ...     result = pipe.homogenize(torch.eye(2), torch.tensor(losses, dtype=torch.float64))
    >>> result.weights  # rates of −0.1 and −0.4
    tensor([1.5370, 0.4630], dtype=torch.float64)
    """

    state_names = {"histories": dict[str, list[float]]}

    def __init__(
        self,
        variant: Literal["original", "normalized", "loss_weighted"] = "original",
        beta: float = 0.1,
        order: Annotated[int, Interval(ge=1, le=5)] = 1,
    ) -> None:
        self.variant, self.beta, self.order = variant, beta, order
        self.histories: dict[str, list[float]] = {}  # newest first

    def mix(self, step: Step) -> Tensor:
        keys = step.names
        losses = _losses.mean_by_key(keys, step.losses)
        windows = [[loss, *self.histories.get(key, [])] for key, loss in zip(keys, losses, strict=True)]
        rates = torch.stack([backward_difference(window) for window in windows])
        advice = "Divide the losses by a constant."
        _losses.require_valid(rates.isfinite(), step, "differences of losses must be finite", advice)
        if self.variant == "normalized":
            total = rates.abs().sum()
            rates = rates / torch.where(total > 0, total, 1.0)
        # Not β s: it may overflow, and the difference of two infinite numbers is NaN.
        exponents = self.beta * (rates - (rates.max() if self.beta > 0 else rates.min()).detach())
        if self.variant == "loss_weighted":
            _losses.nonnegative(step, "because variant='loss_weighted' multiplies weights by them")
            exponents = exponents + _logarithms(torch.stack([sum(window) / len(window) for window in windows]))
        return _losses.exponential_weights(exponents)

    def update(self, step: Step) -> dict[str, Any]:
        newest = keyed.mean_numbers(step.names, step.losses)
        updated = {key: [loss, *self.histories.get(key, [])][: self.order] for key, loss in newest.items()}
        return {"histories": {**self.histories, **updated}}


def backward_difference(window: Sequence[Any]) -> Any:
    """Return the derivative at the newest of n + 1 equidistant values, newest first: hf' = Σ_k ∇ᵏf / k."""
    rate, differences = 0.0 * window[0], list(window)
    for k in range(1, len(window)):
        differences = [newer - older for newer, older in pairwise(differences)]
        rate = rate + differences[0] / k
    return rate


def _logarithms(averages: Tensor) -> Tensor:
    """Return log L̄, `[tasks]`, −∞ for L̄ = 0; zeros if all are zero."""
    zero = averages == 0
    return torch.where(zero, 0.0 if bool(zero.all()) else -torch.inf, torch.where(zero, 1.0, averages).log())


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=SoftAdapt,
        summary="gives more weight to tasks whose losses rise or fall slowly from step to step",
        reference="Heydari et al. 2019, arXiv 1912.12355",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
