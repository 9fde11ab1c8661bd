"""The step whose weights are in balance with the gains of the tasks: of Nash-MTL and FairGrad."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog import StageResult, Step, bargaining_weights, gramian_rounding


def balanced_step(step: Step, alpha: float) -> StageResult:
    """⟨g_0, d⟩/‖d‖² · d for the paper's d = Σ_i w_i g_i: weights `[tasks]`, with the aux that `paper_factor` reads."""
    gramian = step.gramian()
    solution = bargaining_weights(gramian, alpha, gramian_rounding(step.dtype))
    weights, aux = projected_mean(gramian, solution.weights)
    return StageResult(weights, aux, bool(solution.converged))


def projected_mean(gramian: Tensor, weights: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Weights of the mean's projection on Σ_i w_i g_i, their ratio to w, and the length of Σ_i w_i g_i."""
    gains = gramian @ weights  # ⟨g_i, d⟩
    square = weights @ gains  # ‖d‖²
    none = square <= 0  # no solution: w = 0
    square = torch.where(none, 1.0, square)
    ratio = torch.where(none, 1.0, gains.sum() / square)
    return weights * ratio, (ratio, square.sqrt())


def paper_factor(step: Step, max_norm: float | None) -> Tensor:
    """The factor from `balanced_step` to the paper's step, which is clipped to the length `max_norm`."""
    ratio, length = step.aux
    factor: Tensor = step.tasks / ratio
    return factor if max_norm is None else factor * (max_norm / length).clamp_max(1.0)
