"""Smooth Tchebycheff scalarization (STCH): a smooth maximum of the losses, so that the worst task weighs most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, HomogenizerSpec, OptionError, hookimpl
from gradhomog_plugins import _losses, _per_task


class STCH(Homogenizer):
    """Row i is weighed as the derivative of a smooth maximum of the weighted losses by L_i weighs it.

    L = μ log Σ_i exp(y_i/μ),  y_i = λ_i (L_i − z_i);  ∂L/∂L_i = λ_i p_i,  p = softmax(y/μ)
    d = 1/N Σ_i ω_i g_i,  ω_i = λ_i p_i over its mean  (`scale="mean"`)  or  N λ_i p_i  (`scale="paper"`: d = ∇L)
    With `log`: y_i = log(L_i/m_i) and N times that L, so ∂L/∂L_i = N p_i/L_i; while m is measured, L = Σ_i log L_i.

    Args:
        mu: μ > 0. Small, only the worst task counts; large, the weights are λ (with `log`, 1/L_i). By default 0.1, and
            with `log` 1, as the authors' code has it.
        weights: λ ≥ 0, a preference: a list by slot, or a dict by domain with the entry `"*"` for those that it does
            not name (1 without it); divided by their sum. By default all equal.
        ideal: z, the lowest losses that can be: one number, or a list or a dict as before (0 for who is not named).
        log: the variant of the authors' multi-task code, which needs no common unit of the losses. m_i is the mean of
            L_i in the epoch after `warmup`; who is seen only later is measured by its first loss.
        warmup: ≥ 0, epochs before the one in which m is measured; for `log`.
        period: ≥ 1, steps that make an epoch, as in `dwa`; for `log`.
        key: m by `"slot"` (place in the batch) or by `"domain"`, which is right where a slot's domain changes from
            batch to batch, as in the strong setting; for `log`.
        scale: see above.

    Acts on rows: the shared parameters see the combined loss, the heads of a multi-task network their own losses.

    Differentiable in rows and losses. State: none without `log`; else m by key, and the sums it is made of. Any losses
    will do without `log`; they must be positive with it. Computed from logarithms: nothing overflows. Cost: O(N).

    Source: Lin et al. 2024, "Smooth Tchebycheff Scalarization", arXiv 2402.19078, equation 9.

    Deviations: (1) the formula of the paper is the default. The authors' multi-task code is another method, and with
    its own μ = 1 it is none that adapts: p_i/L_i is then proportional to 1/m_i, fixed weights, and only the length of
    the step still changes; (2) μ = 0.1 is between the 0.01 of the authors' code for losses in [0, 1] and the 1 of the
    other; the paper tries 0.01 to 1 and finds none best; (3) no 1e-20 within the logarithms; (4) with a `warmup` of 4
    the fifth epoch is still one of Σ log L, in the authors' code and so here; (5) the mean of the weights is one by
    default; (6) TorchJD does not divide λ by its sum.

    >>> import torch, gradhomog
    >>> gradhomog.pipeline("stch").combine(torch.eye(2), losses=[1.0, 1.2])
    tensor([0.2689, 0.7311])
    """

    carried = ("steps", "sums", "references")

    def __init__(
        self,
        mu: float | None = None,
        weights: Sequence[float] | Mapping[str, float] | None = None,
        ideal: _per_task.PerTask = 0.0,
        log: bool = False,
        warmup: int = 4,
        period: int = 100,
        key: Literal["slot", "domain"] = "slot",
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if mu is not None and not 0 < mu < math.inf:
            raise OptionError(f"stch: `mu` must be positive; got {mu!r}.")
        if warmup < 0 or period < 1:
            name, value, least = ("warmup", warmup, 0) if warmup < 0 else ("period", period, 1)
            raise OptionError(f"stch: `{name}` must be at least {least}; got {value!r}.")
        _per_task.check("stch: `ideal`", ideal)
        if weights is not None:
            _per_task.check("stch: `weights`", weights, least=0.0)
        if log and (weights is not None or ideal != 0.0):
            raise OptionError("stch: `weights` and `ideal` have no place in the formula of `log=True`; leave them out.")
        self.mu = mu if mu is not None else 1.0 if log else 0.1
        self.weights, self.ideal, self.log = weights, ideal, log
        self.warmup, self.period, self.key, self.scale = warmup, period, key, scale
        self.steps = 0  # until all m are measured
        self.sums: dict[str, list[float]] = {}  # of the epoch in which they are: sum and number
        self.references: dict[str, float] = {}  # m

    def mix(self, evidence: Evidence) -> Tensor:
        heights, log_slopes = self._in_logarithms(evidence) if self.log else self._as_in_the_paper(evidence)
        if self.scale == "mean":
            return mean_weights(heights, log_slopes)
        if not self.log:
            return paper_weights(heights, log_slopes)
        weights = evidence.tasks * paper_weights(heights, log_slopes)
        _losses.require_weights(weights, evidence, "stch", "N² s/L")
        return weights

    def update(self, evidence: Evidence) -> None:
        if not self.log:
            return
        batch = list(zip(evidence.by(self.key), evidence.losses.tolist(), strict=True))
        start = self.warmup * self.period
        if self.steps < start + self.period:
            if self.steps >= start:
                for key, loss in batch:
                    total, count = self.sums.get(key, (0.0, 0.0))
                    self.sums[key] = [total + loss, count + 1]
            self.steps += 1
            if self.steps < start + self.period:
                return
            self.references = {key: total / count for key, (total, count) in self.sums.items()}
            self.sums = {}
        else:
            for key, loss in batch:
                self.references.setdefault(key, loss)

    def _as_in_the_paper(self, evidence: Evidence) -> tuple[Tensor, Tensor]:
        """y/μ, up to a constant, and the logarithms of ∂y_i/∂L_i, `[tasks]` each."""
        losses = evidence.losses
        preference = torch.ones_like(losses)
        if self.weights is not None:
            preference = _per_task.of_batch("stch: `weights`", self.weights, evidence, 1.0).to(losses)
        if not preference.sum() > 0:
            raise OptionError(f"stch: `weights` must not all be zero in a batch; got {preference.tolist()}.")
        preference = preference / preference.sum()
        ideal = _per_task.of_batch("stch: `ideal`", self.ideal, evidence, 0.0).to(losses)
        shown = preference * (losses - ideal)
        return (shown - shown.detach().max()) / self.mu, preference.log()  # less a constant, or the quotient overflows

    def _in_logarithms(self, evidence: Evidence) -> tuple[Tensor, Tensor]:
        losses = evidence.losses
        _losses.require(losses > 0, evidence, "stch: losses must be positive for `log=True`")
        # Before it has an m a task is at it, which is what the warm-up's sum of logarithms amounts to.
        known = [self.references.get(key, 0.0) for key in evidence.by(self.key)]
        references = torch.tensor(known, dtype=losses.dtype, device=losses.device)
        references = torch.where(references > 0, references, losses)
        return (losses.log() - references.log()) / self.mu, -losses.log()


def mean_weights(heights: Tensor, log_slopes: Tensor) -> Tensor:
    """softmax(heights) · slopes over its mean, `[tasks]`: in logarithms, so that the sum cannot vanish."""
    return heights.shape[0] * torch.softmax(heights + log_slopes, dim=0)


def paper_weights(heights: Tensor, log_slopes: Tensor) -> Tensor:
    """N times the derivatives of μ log Σ_i exp(heights_i), `[tasks]`."""
    return heights.shape[0] * torch.softmax(heights, dim=0) * log_slopes.exp()


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=STCH,
        summary="a smooth maximum of the losses: the worst task weighs most",
        reference="Lin et al. 2024, arXiv 2402.19078, equation 9",
        traits={"differentiable", "stateful", "permutation_equivariant", "scale_equivariant", "rotation_equivariant"},
        needs={"losses"},
    )
