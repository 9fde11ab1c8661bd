"""The best direction for the worst task within a ball around the mean: CAGrad's program."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradhomog.rows import safe_sqrt
from gradhomog.solvers.pivoting import RIDGE, ROUNDING, Pivots, any_true, exchanged, on_support, pivot, product
from gradhomog.solvers.scaling import checked, needs_graph, scaled

# Terms of d − g_0 that are together so many times as long as it say that the hull holds zero: the ridge lets them grow
# to some 1e7, and of true ones the length could not be told from rounding.
CANCELLING = 1e6
ACROSS = 1e-6  # beyond the ball by rounding


class _Ball(NamedTuple):
    """The program on scaled rows: slopes of the mean, inverse lengths t, squared radius `[..., 1]`."""

    unit: Tensor
    slopes: Tensor
    target: Tensor
    radius: Tensor


def conflict_averse_weights(gramian: Tensor, c: float) -> Tensor:
    """Weights of the direction that maximises min_i ⟨g_i, d⟩ over ‖d − g_0‖ ≤ c ‖g_0‖, g_0 the mean of the rows.

    Args:
        gramian: G, symmetric positive semi-definite `[..., tasks, tasks]`, any floating dtype; finite.
        c: radius relative to ‖g_0‖, ≥ 0; 0 gives the mean.

    Returns:
        v, float64 `[..., tasks]` ≥ 1/tasks: d = Σ_i v_i g_i. Where the hull of the rows holds zero (a zero row,
        opposite rows), no direction has ⟨g_i, d⟩ > 0 for all; of those in the ball with ⟨g_i, d⟩ ≥ 0, if there are
        any, d is the nearest to g_0.

    Method: d − g_0 = Σ_i x_i g_i with x ≥ 0, and x_i > 0 only where ⟨g_i, d⟩ is least, equal to τ. For a given set of
    such rows x is linear in τ and ‖d − g_0‖ = c ‖g_0‖ is quadratic, so every exchange of block principal pivoting
    solves for both; where that does not end, τ is bisected and x found by pivoting for each. Equivalent to the dual in
    the paper, min over the simplex of ⟨g_w, g_0⟩ + c ‖g_0‖ ‖g_w‖, with x = w c ‖g_0‖/‖g_w‖.

    Differentiable twice in G wherever the set of rows with x > 0 does not change. A common factor that is a power of
    two changes no bit.

    Accuracy: of both conditions up to 1e-9 max_i ‖g_i‖/tasks; where rows cancel to one part in a, up to 1e-16 a².

    Cost: 0.15 ms for two tasks, 0.5 to 0.8 ms for 16, 10 to 20 ms where τ is bisected.

    Raises:
        OptionError: `gramian` is not square in its last two dimensions.

    >>> conflict_averse_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]]), c=0.5)
    tensor([0.5000, 1.0590], dtype=torch.float64)
    """
    gramian = checked(gramian)
    if c == 0:
        return torch.full_like(gramian[..., 0], 1 / gramian.shape[-1])
    if gramian.shape[-1] == 2:
        return _pair(gramian, c)
    factors, unit = scaled(gramian)
    present = factors > 0
    mean = present / (factors.masked_fill(~present, 1.0) * factors.shape[-1])
    size = mean.amax(dim=-1, keepdim=True)
    size = size.masked_fill(size == 0, 1.0)
    mean = mean / size
    longest = factors.amax(dim=-1, keepdim=True)
    target = factors / longest.masked_fill(longest == 0, 1.0)

    def ball(matrix: Tensor) -> _Ball:
        slopes = product(matrix, mean)
        return _Ball(matrix, slopes, target, c * c * (mean * slopes).sum(dim=-1, keepdim=True).clamp_min(0))

    program = ball(unit.detach())
    support, ridge = _pivot(program)
    level, solution, _ = _on_ball(program, support, ridge)
    cancelling = solution.sum(dim=-1, keepdim=True) > CANCELLING * (safe_sqrt(program.radius) + ROUNDING)
    no_descent = cancelling | (~present.all(dim=-1, keepdim=True) & (level > 0))
    cone = None
    if bool(no_descent.any()):
        cone = pivot(program.unit, -program.slopes)
        far = (cone.solution * product(program.unit, cone.solution)).sum(dim=-1, keepdim=True)
        no_descent = no_descent & (far <= program.radius * (1 + ACROSS))  # a thin cone's projection may be far away
    if needs_graph(gramian):
        program = ball(unit)
        solution = _on_ball(program, support, ridge)[1]
    if cone is not None:
        nearest = on_support(program.unit, cone.support, -program.slopes.unsqueeze(-1), cone.ridge).squeeze(-1)
        solution = torch.where(no_descent, nearest, solution)
    return 1 / factors.shape[-1] + solution.clamp_min(0) * size * factors


def _pair(gramian: Tensor, c: float) -> Tensor:
    """Equal inner products with both rows, if the ball reaches so far; else the shorter row alone is followed."""
    squares = gramian.diagonal(dim1=-2, dim2=-1)
    inner = gramian[..., 0, 1:]
    gaps = squares.flip(-1) - inner
    apart = gaps.sum(dim=-1, keepdim=True)  # ‖g_1 − g_2‖²
    shares = torch.where(apart > 0, gaps / torch.where(apart > 0, apart, 1.0), 0.5)
    # g_m = Σ shares_i g_i is orthogonal to g_1 − g_2, and g_0 = g_m + (½ − shares_1)(g_1 − g_2).
    aside = (shares[..., :1] - 0.5).square() * apart
    along = (shares * product(gramian, shares)).sum(dim=-1, keepdim=True).clamp_min(0)
    radius = c * safe_sqrt((squares.sum(dim=-1, keepdim=True) + 2 * inner).clamp_min(0)) / 2
    left = radius.square() - aside
    onwards = safe_sqrt(left.clamp_min(0))
    root = safe_sqrt(along)
    cancelling = onwards >= CANCELLING * root
    stretch = 1 + torch.where(cancelling, 0.0, onwards / torch.where(cancelling, 1.0, root))
    both = shares * stretch - 0.5
    norms = safe_sqrt(squares)
    alone = torch.where(squares < squares.flip(-1), radius / torch.where(norms > 0, norms, 1.0), 0.0)
    shared = (torch.minimum(gaps, both) >= 0).all(dim=-1, keepdim=True) & (left >= 0)
    added = torch.where(shared, both, alone)
    return 0.5 + torch.where((squares > 0).all(dim=-1, keepdim=True), added, 0.0)


def _on_ball(program: _Ball, support: Tensor, ridge: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    """τ, y, and whether the ball reaches so far, if just the rows of `support` have the least inner product.

    U y + slopes = τ t there; `[..., 1]`, `[..., tasks]`, `[..., 1]`.
    """
    both = torch.stack([program.target, program.slopes], dim=-1)
    rise, offset = on_support(program.unit, support, both, ridge).unbind(dim=-1)
    # y = τ rise − offset; its squared length is a τ² − 2 b τ + e.
    a = (rise * program.target).sum(dim=-1, keepdim=True)
    b = (rise * program.slopes).sum(dim=-1, keepdim=True)
    e = (offset * program.slopes).sum(dim=-1, keepdim=True)
    first, second = b * b, a * (e - program.radius)
    level = (b + safe_sqrt(first - second)) / torch.where(a == 0, 1.0, a)
    return level, level * rise - offset, first - second >= -1e-9 * (first + a * program.radius)


def _pivot(program: _Ball) -> tuple[Tensor, Tensor | float]:
    """Which rows have the least inner product, and the ridge it took."""
    present = program.target > 0
    ratios = torch.where(present, program.slopes / program.target, torch.inf)
    support, unsolved = _exchange(program, (ratios <= ratios.amin(dim=-1, keepdim=True)) & present)
    if not bool(unsolved.any()):
        return support, RIDGE
    found = _bisect(program)
    ridge = torch.where(unsolved.unsqueeze(-1), found.ridge, RIDGE)
    return torch.where(unsolved, found.support, support), ridge


def _exchange(program: _Ball, support: Tensor) -> tuple[Tensor, Tensor]:
    """As in `pivoting`, with τ for a given support found before its rows are judged; and who is not solved."""
    last = 12 * support.shape[-1]
    for step in range(last + 1):
        level, solution, reached = _on_ball(program, support, RIDGE)
        slope = product(program.unit, solution) + program.slopes - level * program.target
        allowed = 10 * ROUNDING * (1 + solution.abs().sum(dim=-1, keepdim=True))
        wrong = exchanged(torch.where(support, solution, slope + allowed), step)
        if step == last or not any_true(wrong, step):
            break
        support = support ^ wrong
    return support, wrong.any(dim=-1, keepdim=True) | ~reached


def _bisect(program: _Ball) -> Pivots:
    """The same by bisecting τ: ‖d − g_0‖ grows with it, from 0 at the least ⟨g_i, g_0⟩."""
    bounds = torch.stack([program.slopes, program.slopes + safe_sqrt(program.radius)])  # scaled rows are shorter than 1
    low, high = torch.where(program.target > 0, bounds / program.target, torch.inf).amin(dim=-1, keepdim=True)
    for _ in range(60):
        level = (low + high) / 2
        found = pivot(program.unit, level * program.target - program.slopes)
        length = (found.solution * product(program.unit, found.solution)).sum(dim=-1, keepdim=True)
        outside = length > program.radius
        low, high = torch.where(outside, low, level), torch.where(outside, level, high)
    return found
