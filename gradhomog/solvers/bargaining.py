"""Weights in balance with what they give: the equations of Nash-MTL and FairGrad."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.solvers.pivoting import any_true, product
from gradhomog.solvers.scaling import checked, needs_graph, scaled

# Where one w_i g_i is 1e4 times as long as their sum, rows count as opposite: no direction improves all tasks. Gramians
# of float32 rows could not tell more. This is of the squares.
CANCELLING = 1e8
LOST = 1e12  # terms of w_i^p (Gw)_i = 1 whose rounding leaves three digits of their sum
CLOSE = 1e-7  # the last step is that small, relative to each weight: quadratic convergence leaves 1e-14
NEAR = 0.1  # falls below that are steps of Newton's method as it stands, for its quadratic convergence
STEPS = 100
# Of 60 random Gramians each, with norms up to 1e6 apart, none failed from 0.5 to 20; at 30 and 0.2 one, at 100 half.
SMALLEST_ALPHA, LARGEST_ALPHA = 0.25, 20
EARLY = 8  # steps that nearly always suffice, and before which no more than their length is looked at


def bargaining_weights(gramian: Tensor, alpha: float = 1.0) -> Tensor:
    """The w > 0 with Gw = w^(−1/α) in every entry; `alpha=1` is the Nash bargaining solution w_i (Gw)_i = 1.

    Args:
        gramian: G, symmetric positive semi-definite `[..., tasks, tasks]`, any floating dtype; finite.
        alpha: in [0.25, 20], the more the fairer: 0 would weigh all alike, infinity serve the worst task only. Outside
            that range weights of rows that agree differ by more orders of magnitude than float64 can hold in one sum.

    Returns:
        w, float64 `[..., tasks]` > 0. Zero rows are left out and have w_i = 0. Where there is no solution, which is
        where the hull of the others holds zero (up to a ten-thousandth of their length), all w are zero: the
        disagreement point.

    Method: with p = 1/α these are the stationarity conditions of the strictly convex ½wᵀGw − Σ_i w_i^(1−p)/(1−p), or
    − Σ_i log w_i. Newton's method in relative steps, w ← w (1 + s u) with (K + p·1) u = 1 − K 1 and
    K_ij = w_i^p G_ij w_j, whose system has no eigenvalue below p; no line search: s = (1 − (1 + pθ)^(−1/p))/θ minimises
    an upper bound along the step, where θ is the largest relative fall (for p = 1 the step 1/(1 + θ) of
    self-concordant functions), and is at most 1/(1 + θ), so that no weight falls too far to come back soon. Two tasks
    with α = 1: the closed form w_i = 1/(‖g_i‖ √(1 + cos)).

    Differentiable twice in G: two steps more are taken with the graph, from the solution as a constant. For α = 1 a
    common factor of the rows that is a power of two changes no bit of w beside that factor.

    Accuracy: |w_i^p (Gw)_i − 1| ≤ 1e-10, or 4e-15 Σ_j w_i^p |G_ij| w_j if that is more.

    Cost: 0.05 ms for two tasks, 0.6 ms for 16 (5 steps on average), 1.5 ms where there is no solution.

    Source: Navon et al. 2022, arXiv 2202.01017, claim 3.1; Ban and Ji 2024, arXiv 2402.15638, equation 4.

    Raises:
        OptionError: `gramian` is not square in its last two dimensions, or `alpha` out of its range.

    >>> bargaining_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    if not SMALLEST_ALPHA <= alpha <= LARGEST_ALPHA:
        raise OptionError(f"`alpha` must be in [{SMALLEST_ALPHA}, {LARGEST_ALPHA}]; got {alpha!r}.")
    gramian, power = checked(gramian), 1 / alpha
    if gramian.shape[-1] == 2 and power == 1:
        return _pair(gramian)
    factors, _ = scaled(gramian)
    present = factors > 0
    # One factor for all: the rows' lengths matter, unless α = 1.
    shrink = torch.where(present, factors, torch.inf).amin(dim=-1, keepdim=True)
    shrink = torch.where(present.any(dim=-1, keepdim=True), shrink, 1.0)
    matrix = gramian * shrink.square().unsqueeze(-1)
    matrix = matrix + torch.diag_embed((~present).double())  # a zero row is a task of its own, in balance with w = 1
    weights, solved = _solve(matrix.detach(), present, power)
    if needs_graph(gramian):
        weights = torch.where(solved, weights, 1.0)
        for _ in range(2):  # one has the right first derivative, the second step the right second one
            weights = weights * (1 + _newton(matrix, weights, power)[0])
    return torch.where(present & solved, weights, 0.0) * shrink ** (2 / (1 + power))


def _newton(matrix: Tensor, weights: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """The relative step u `[..., tasks]`, and K."""
    balance = weights.pow(power).unsqueeze(-1) * matrix * weights.unsqueeze(-2)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    step: Tensor = torch.linalg.solve_ex(balance + power * identity, 1 - balance.sum(dim=-1))[0]
    return step, balance


def _solve(matrix: Tensor, present: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """w, and whether there is one `[..., 1]`."""
    weights = _start(matrix, present, power)
    settled = torch.zeros_like(present[..., :1])
    hopeless = settled
    for step in range(STEPS):
        change, balance = _newton(matrix, weights, power)
        fall = (-change).amax(dim=-1, keepdim=True).clamp_min(1e-12)
        share = 1 / (1 + fall)
        if power != 1:
            share = torch.minimum(share, -torch.expm1(-torch.log1p(power * fall) / power) / fall)
        weights = weights * (1 + torch.where(fall < NEAR, 1.0, share) * change)
        moved = change.abs().amax(dim=-1, keepdim=True)
        settled = moved <= CLOSE
        if step >= EARLY:
            terms = balance.abs().sum(dim=-1)
            rounding = (terms / (balance.sum(dim=-1).abs() + power)).amax(dim=-1, keepdim=True)
            settled = settled | (moved <= 16 * torch.finfo(matrix.dtype).eps * rounding)
            whole = (weights * product(matrix, weights)).sum(dim=-1, keepdim=True)
            parts = weights.square() * matrix.diagonal(dim1=-2, dim2=-1)
            growing = change > CLOSE
            hopeless = hopeless | (growing & ((parts > CANCELLING * whole) | (terms > LOST))).any(dim=-1, keepdim=True)
        if not any_true(~(settled | hopeless), step):
            break
    return weights, settled & ~hopeless


def _start(matrix: Tensor, present: Tensor, power: float) -> Tensor:
    """The solution for orthogonal rows, times what balances the sum over the tasks."""
    squares = matrix.diagonal(dim1=-2, dim2=-1)
    alone = squares.pow(-1 / (1 + power))
    own = torch.where(present, alone.square() * squares, 0.0).sum(dim=-1, keepdim=True)
    together = torch.where(present, alone * (matrix @ alone.unsqueeze(-1)).squeeze(-1), 0.0).sum(dim=-1, keepdim=True)
    common = (own / torch.maximum(together, 1e-3 * own)).pow(1 / (1 + power))
    return torch.where(present, alone * common, 1.0)


def _pair(gramian: Tensor) -> Tensor:
    squares = gramian.diagonal(dim1=-2, dim2=-1)
    norms = squares.masked_fill(squares <= 0, 1.0).sqrt()
    cosine = gramian[..., 0, 1:] / norms.prod(dim=-1, keepdim=True)
    solved = (1 + cosine.abs() < CANCELLING * (1 + cosine)) & (squares > 0)
    return torch.where(solved, 1 / (norms * (1 + torch.where(solved, cosine, 0.0)).sqrt()), 0.0)
