"""The two losses of the toy example of CAGrad (Liu et al. 2021), and their Pareto front."""

from __future__ import annotations

import torch
from torch import Tensor

STARTS = ((-8.5, 7.5), (-8.5, -5.0), (9.0, 9.0))
"""Starts in the authors' code for the paper's Figure 1. Section 5.1 lists five points; two of them are among these."""

_FLOOR = 0.000005


def losses(point: Tensor) -> Tensor:
    """Return both losses `[..., 2]` of points `[..., 2]`, differentiable.

    With t = tanh(−x₂), u = max(tanh(x₂/2), 0) and v = max(tanh(−x₂/2), 0):

        L₁ = u (log max(|½(−x₁ − 7) − t|, 5·10⁻⁶) + 6)     + v (((−x₁ + 7)² + (−x₂ − 8)²/10)/10 − 20)
        L₂ = u (log max(|½(−x₁ + 3) + t + 2|, 5·10⁻⁶) + 6) + v (((−x₁ − 7)² + (−x₂ − 8)²/10)/10 − 20)

    Source: Liu et al. 2021, "Conflict-Averse Gradient Descent for Multi-task Learning" (arXiv 2110.14048), section 5.1,
    and `toy.py` of the authors' code.

    Deviation: the paper prints −t + 2 in L₂ and the code has t + 2, as here. Only with t + 2 are the losses mirror
    images of each other, L₁(x₁, x₂) = L₂(−x₁, x₂), as in the paper's figures. With −t + 2, the valley of L₂ would
    contain the start (9, 9).
    """
    x, y = point.unbind(-1)
    above, below = (y / 2).tanh().clamp_min(0), (-y / 2).tanh().clamp_min(0)
    first = (0.5 * (-x - 7) - (-y).tanh()).abs().clamp_min(_FLOOR).log() + 6
    second = (0.5 * (-x + 3) + (-y).tanh() + 2).abs().clamp_min(_FLOOR).log() + 6
    bowls = [((-x + sign * 7).square() + 0.1 * (-y - 8).square()) / 10 - 20 for sign in (1, -1)]
    return torch.stack([first * above + bowls[0] * below, second * above + bowls[1] * below], dim=-1)


def pareto_front(count: int = 401) -> Tensor:
    """Return points `[count, 2]`, float64, where neither loss can decrease without an increase of the other.

    A weighted sum w L₁ + (1 − w) L₂ has its minimum at x₂ < 0, where its two bowls form one bowl with centre x₁ = 7s,
    s = 2w − 1. There the sum is v (4.9(1 − s²) + (x₂ + 8)²/100 − 20), and its derivative w.r.t. x₂ changes sign once
    between −12 and −4. (The paper draws the line x₂ = −8.3552 of s = 0 for all s; the ends of the front have lower x₂.)
    """
    share = torch.linspace(-1, 1, count, dtype=torch.float64)
    low, high = torch.full_like(share, -12.0), torch.full_like(share, -4.0)
    for _ in range(60):  # bisections of an interval of length 8, to less than the last bit of a float64
        middle = (low + high) / 2
        bowl = 4.9 * (1 - share.square()) + (middle + 8).square() / 100 - 20
        derivative = (-middle / 2).tanh() * (middle + 8) / 50 - bowl / 2 / (middle / 2).cosh().square()
        low, high = torch.where(derivative < 0, middle, low), torch.where(derivative < 0, high, middle)
    return torch.stack([7 * share, (low + high) / 2], dim=1)


def distance_from_front(points: Tensor, front: Tensor) -> Tensor:
    """Return the distance `[n]` of the losses of points `[n, 2]` from the losses of the front's points `[count, 2]`."""
    # Without matrix products: their rounding errors are as large as small distances.
    return torch.cdist(losses(points.double()), losses(front), compute_mode="donot_use_mm_for_euclid_dist").amin(dim=1)
