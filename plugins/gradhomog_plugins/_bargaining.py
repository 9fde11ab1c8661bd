"""The mix stage of Nash-MTL and FairGrad: the mean gradient, projected on the bargaining direction."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog import StageResult, Step, bargaining_weights, gramian_rounding


def bargaining_stage(step: Step, alpha: float) -> StageResult:
    """Return weights `[tasks]` of ⟨g_0, d⟩/‖d‖² · d for the bargaining direction d, and aux for `paper_factor`."""
    gramian = step.gramian()
    solution = bargaining_weights(gramian, alpha, gramian_rounding(step.dtype))
    weights, aux = projection_weights(gramian, solution.weights)
    return StageResult(weights, aux, bool(solution.converged))


def projection_weights(gramian: Tensor, weights: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the weights of the mean's projection on Σ_i w_i g_i, their ratio to w, and the length of Σ_i w_i g_i."""
    gains = gramian @ weights  # ⟨g_i, d⟩
    square = weights @ gains  # ‖d‖²
    no_solution = square <= 0  # w = 0
    square = torch.where(no_solution, 1.0, square)
    ratio = torch.where(no_solution, 1.0, gains.sum() / square)
    return weights * ratio, (ratio, square.sqrt())


def paper_factor(step: Step, max_norm: float | None) -> Tensor:
    """Return the ratio of the paper's step, clipped to the length `max_norm`, to that of `bargaining_stage`."""
    ratio, length = step.aux
    factor: Tensor = step.tasks / ratio
    return factor if max_norm is None else factor * (max_norm / length).clamp_max(1.0)
