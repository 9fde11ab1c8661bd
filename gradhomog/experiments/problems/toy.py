"""The two losses of the toy example of CAGrad (Liu et al. 2021), and their Pareto front."""

from __future__ import annotations

import torch
from torch import Tensor

STARTS = ((-8.5, 7.5), (-8.5, -5.0), (9.0, 9.0))
"""Where the authors' code starts, for the paper's Figure 1; section 5.1 names five points, two of them these."""

_FLOOR = 0.000005


def losses(point: Tensor) -> Tensor:
    """Both losses `[..., 2]` of points `[..., 2]`, differentiable.

    With t = tanh(−x₂), u = max(tanh(x₂/2), 0) and v = max(tanh(−x₂/2), 0):

        L₁ = u (log max(|½(−x₁ − 7) − t|, 5·10⁻⁶) + 6)     + v (((−x₁ + 7)² + (−x₂ − 8)²/10)/10 − 20)
        L₂ = u (log max(|½(−x₁ + 3) + t + 2|, 5·10⁻⁶) + 6) + v (((−x₁ − 7)² + (−x₂ − 8)²/10)/10 − 20)

    Source: Liu et al. 2021, "Conflict-Averse Gradient Descent for Multi-task Learning" (arXiv 2110.14048), section 5.1,
    and `toy.py` of the authors' code.

    Deviation: the paper prints −t + 2 in L₂ and the code has t + 2, as here. Only so are the losses mirror images of
    each other, L₁(x₁, x₂) = L₂(−x₁, x₂), as the paper's figures show them; as printed, the valley of L₂ would run
    through the start (9, 9).
    """
    x, y = point.unbind(-1)
    above, below = (y / 2).tanh().clamp_min(0), (-y / 2).tanh().clamp_min(0)
    first = (0.5 * (-x - 7) - (-y).tanh()).abs().clamp_min(_FLOOR).log() + 6
    second = (0.5 * (-x + 3) + (-y).tanh() + 2).abs().clamp_min(_FLOOR).log() + 6
    bowls = [((-x + sign * 7).square() + 0.1 * (-y - 8).square()) / 10 - 20 for sign in (1, -1)]
    return torch.stack([first * above + bowls[0] * below, second * above + bowls[1] * below], dim=-1)


def pareto_front(count: int = 401) -> Tensor:
    """The points `[count, 2]`, float64, at which neither loss can fall without the other rising.

    A weighted sum w L₁ + (1 − w) L₂ has its minimum below x₂ = 0, where its two bowls are one, with the middle
    x₁ = 7s, s = 2w − 1: it is v (4.9(1 − s²) + (x₂ + 8)²/100 − 20) there, and the derivative of this by x₂ changes its
    sign once between −12 and −4. (The paper draws the line x₂ = −8.3552 of s = 0 for all s; the ends lie lower.)
    """
    share = torch.linspace(-1, 1, count, dtype=torch.float64)
    low, high = torch.full_like(share, -12.0), torch.full_like(share, -4.0)
    for _ in range(60):  # halves 8 to below the last bit of a float64
        middle = (low + high) / 2
        bowl = 4.9 * (1 - share.square()) + (middle + 8).square() / 100 - 20
        slope = (-middle / 2).tanh() * (middle + 8) / 50 - bowl / 2 / (middle / 2).cosh().square()
        low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
    return torch.stack([7 * share, (low + high) / 2], dim=1)


def distance_from_front(point: Tensor, ends: Tensor) -> Tensor:
    """How far the losses of points `[n, 2]` are from the losses of the front's points `[count, 2]`: `[n]`."""
    # Not by a product of matrices, whose rounding is as large as small distances are.
    return torch.cdist(losses(point.double()), losses(ends), compute_mode="donot_use_mm_for_euclid_dist").amin(dim=1)
