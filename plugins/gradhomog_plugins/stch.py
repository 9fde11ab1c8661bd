"""Smooth Tchebycheff scalarization (STCH): a smooth maximum of the losses, which favours the worst task."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, OptionError, Step, hookimpl, keyed
from gradhomog_plugins import _losses, _per_task
from gradhomog_plugins._per_task import Preferences


class STCH(Homogenizer):
    """Weights from the derivatives of a smooth maximum of the weighted losses.

        L = μ log Σ_i exp(y_i/μ),  y_i = λ_i (L_i − z_i),  ∂L/∂L_i = λ_i p_i,  p = softmax(y/μ)
        d = 1/N Σ_i ω_i g_i,  ω_i = λ_i p_i / mean_j λ_j p_j;  paper's scale: ω_i = N λ_i p_i, so that d = ∇L
        with log: y_i = log(L_i/m_i) and N times that L, so ∂L/∂L_i = N p_i/L_i; until m is measured, L = Σ_i log L_i

    Args:
        mu: μ. For small values only the worst task counts; for large values the weights are λ (with `log`, 1/L_i). By
            default 0.1, and with `log` 1, as in the authors' code.
        weights: λ, a preference: a list by slot, or a dict by domain with the entry `"*"` for other domains (1 without
            it); divided by their sum. By default all equal.
        ideal: z, lower bounds of the losses: one number, or a list or a dict as for `weights` (0 where missing).
        log: the variant of the authors' multi-task code, which needs no common unit of the losses. m_i is the mean of
            L_i in the epoch after `warmup`; for a task that occurs only later, its first loss.
        warmup: with `log`, epochs before the one in which m is measured.
        period: with `log`, steps per epoch, as in `dwa`.

    Use it when the worst task matters more than the mean, and the losses have a common unit (or with `log=True`). It is
    harmful where the loss of one task stays high for other reasons, such as noisy labels: that task then takes nearly
    all weight. It reads losses only and does not resolve conflicts.

    Acts on rows: shared parameters receive the gradient of the weighted losses; each head of a multi-task network
    receives the unweighted gradient of its loss. Losses may have any sign without `log`; they must be positive
    with it. Computed from logarithms: nothing overflows.

    Differentiable in rows and losses.

    State: without `log` none; otherwise m by key, and the sums from which it is computed.

    Cost: O(N).

    Source: Lin et al. 2024, "Smooth Tchebycheff Scalarization", arXiv 2402.19078, equation 9.

    Deviations: (1) The formula of the paper is the default. The authors' multi-task code is another method, and with
    its own μ = 1 it does not adapt: p_i/L_i is then proportional to 1/m_i, fixed weights, and only the length of the
    step changes. (2) μ = 0.1 is between the 0.01 of the authors' code for losses in [0, 1] and the 1 of the other; the
    paper compares values from 0.01 to 1, and none of them is the best in all experiments. (3) No 1e-20 inside the
    logarithms. (4) With a `warmup` of 4 the fifth epoch is still one of Σ log L, as in the authors' code. (5) The mean
    of the weights is one by default. (6) λ is divided by its sum; TorchJD does not divide it.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("stch").combine(torch.eye(2), losses=[1.0, 1.2])
    tensor([0.2689, 0.7311])
    """

    state_names = dict.fromkeys(("totals", "counts", "references"), dict[str, float])

    def __init__(
        self,
        mu: Annotated[float, Gt(0)] | None = None,
        weights: Preferences = None,
        ideal: float | Sequence[float] | Mapping[str, float] = 0.0,
        log: bool = False,
        warmup: Annotated[int, Ge(0)] = 4,
        period: Annotated[int, Ge(1)] = 100,
    ) -> None:
        if log and (weights is not None or ideal != 0.0):
            raise OptionError("stch: `weights` and `ideal` are not part of the formula of `log=True`; omit them.")
        self.mu, self.weights, self.ideal, self.log = mu, weights, ideal, log
        self.warmup, self.period = warmup, period
        self.totals: dict[str, float] = {}  # of the epoch in which m is measured
        self.counts: dict[str, float] = {}
        self.references: dict[str, float] = {}  # m

    def mix(self, step: Step) -> Tensor:
        exponents, log_slopes = self._terms(step)
        return _losses.exponential_weights(exponents + log_slopes)  # in logarithms, to avoid a sum of zero

    def paper_scale(self, step: Step) -> Tensor:
        exponents, log_slopes = self._terms(step)
        weights = _losses.exponential_weights(exponents) * log_slopes.exp()  # N ∂/∂L of μ log Σ_i exp(exponents_i)
        if self.log:
            weights = step.tasks * weights
            _losses.require_at_most(weights, step, "N² p/L")
        return weights.mean()

    def update(self, step: Step) -> dict[str, Any]:
        if not self.log:
            return {}
        keys, losses = step.names, step.losses
        number = step.number - self.warmup * self.period
        if number < 0:
            return {}
        if number >= self.period:
            return {"references": {**keyed.write({}, keys, losses), **self.references}}  # new keys only
        totals = keyed.write(self.totals, keys, keyed.read(self.totals, keys, 0.0) + losses)
        counts = keyed.write(self.counts, keys, keyed.read(self.counts, keys, 0.0) + 1)
        if number + 1 < self.period:
            return {"totals": totals, "counts": counts}
        means = {key: total / counts[key] for key, total in totals.items()}
        return {"totals": {}, "counts": {}, "references": means}

    def _terms(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return y/μ up to a constant, and the logarithms of ∂y_i/∂L_i, each `[tasks]`."""
        losses = step.losses
        if self.log:
            _losses.positive(step, "because `log=True` divides by them")
            measured = keyed.read(self.references, step.names, 0.0)
            # A task without m has y = 0, which gives the sum of logarithms of the warm-up.
            references = torch.where(measured > 0, measured, losses)
            return _exponents(losses.log() - references.log(), self.mu or 1.0), -losses.log()
        preference = _per_task.preferences("weights", self.weights, step)
        ideal = _per_task.numbers("ideal", self.ideal, step, default=0.0)
        return _exponents(preference * (losses - ideal), self.mu or 0.1), preference.log()


def _exponents(heights: Tensor, mu: float) -> Tensor:
    """Return (y − max y)/μ, which does not overflow."""
    return (heights - heights.detach().max()) / mu


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=STCH,
        summary="a smooth maximum of the losses: the worst task has the largest weight",
        reference="Lin et al. 2024, arXiv 2402.19078, equation 9",
        traits={"differentiable", "stateful", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
