"""The best direction for the worst task within a ball around the mean: CAGrad's program."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradhomog.solvers.pivoting import RIDGE, ROUNDING, Pivots, any_true, exchanged, on_support, pivot, product
from gradhomog.solvers.scaling import checked, needs_graph, scaled

# Terms of d − g_0 that are together so many times as long as it say that the hull holds zero: the ridge lets them grow
# to some 1e7, and of true ones the length could not be told from rounding.
CANCELLING = 1e6
ACROSS = 1e-6  # beyond the ball by rounding
REACH = 0.5  # of the radius, for the first guess: 2.4 exchanges for 16 tasks and c = 0.4, from the worst row alone 3.8
TINY = 1e-200  # in place of zero: two derivatives of its root are finite


class _Ball(NamedTuple):
    """The program on scaled rows: U without and with a ridge; inverse lengths t beside −U m, m the mean; c² ‖g_0‖²."""

    unit: Tensor
    regular: Tensor
    identity: Tensor
    right: Tensor
    radius: Tensor


class _Found(NamedTuple):
    """y `[..., tasks, 1]`; τ `[..., 1, 1]`; what τ takes a root of, negative where no τ is on the ball; its terms."""

    solution: Tensor
    level: Tensor
    square: Tensor
    terms: Tensor


def conflict_averse_weights(gramian: Tensor, c: float) -> Tensor:
    """Weights of the direction that maximises min_i ⟨g_i, d⟩ over ‖d − g_0‖ ≤ c ‖g_0‖, g_0 the mean of the rows.

    Args:
        gramian: G, symmetric positive semi-definite `[..., tasks, tasks]`, any floating dtype; finite. Batches are its
            leading dimensions: not for `torch.func.vmap` and `torch.compile(fullgraph=True)`, as the loop asks whether
            to go on (at every fourth step where that is a transfer).
        c: radius relative to ‖g_0‖, ≥ 0; 0 gives the mean.

    Returns:
        v, float64 `[..., tasks]` ≥ 1/tasks: d = Σ_i v_i g_i. Where the hull of the rows holds zero (a zero row,
        opposite rows), no direction has ⟨g_i, d⟩ > 0 for all; of those in the ball with ⟨g_i, d⟩ ≥ 0, if there are
        any, d is the nearest to g_0.

    Method: d − g_0 = Σ_i x_i g_i with x ≥ 0, and x_i > 0 only where ⟨g_i, d⟩ is least, equal to τ. For a given set of
    such rows x is linear in τ and ‖d − g_0‖ = c ‖g_0‖ is quadratic, so every exchange of block principal pivoting
    solves for both; where that does not end, τ is bisected and x found by pivoting for each. The first such rows are
    those with ⟨g_i, g_0⟩ below what half the radius could raise any row to. Two rows: the closed forms. Equivalent to
    the dual in the paper, min over the simplex of ⟨g_w, g_0⟩ + c ‖g_0‖ ‖g_w‖, with x = w c ‖g_0‖/‖g_w‖.

    Differentiable twice in G wherever the set of rows with x > 0 does not change. A common factor that is a power of
    two changes no bit.

    Accuracy: of both conditions up to 1e-9 max_i ‖g_i‖/tasks; where rows cancel to one part in a, up to 1e-16 a².

    Cost: 0.05 to 0.1 ms for two tasks, 0.25 to 0.45 ms for 16, 10 to 20 ms where τ is bisected.

    Raises:
        OptionError: `gramian` is not square in its last two dimensions.

    >>> conflict_averse_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]]), c=0.5)
    tensor([0.5000, 1.0590], dtype=torch.float64)
    """
    gramian = checked(gramian)
    tasks = gramian.shape[-1]
    if c == 0:
        return torch.full_like(gramian[..., 0], 1 / tasks)
    if tasks == 2:
        return _pair(gramian, c)
    factors, unit = scaled(gramian)
    target = factors.unsqueeze(-1)
    mean = (tasks * target).reciprocal().masked_fill(target == 0, 0.0)
    program = _ball(unit.detach(), target, mean, c)
    support, found, wrong = _exchange(program, mean)
    length = found.solution.sum(dim=-2, keepdim=True)
    cancelling = length.square() > CANCELLING**2 * program.radius
    if wrong is not None or not bool(((found.square >= 0) & ~cancelling & (target > 0)).all()):
        solution = _otherwise(unit, program, support, found, wrong, mean, c)
    elif needs_graph(unit):
        solution = _on_ball(_ball(unit, target, mean, c), support).solution
    else:
        solution = found.solution
    return (1 / tasks + solution.clamp_min(0) * target).squeeze(-1)


def _ball(unit: Tensor, target: Tensor, mean: Tensor, c: float, ridge: Tensor | float = RIDGE) -> _Ball:
    identity = torch.eye(unit.shape[-1], dtype=unit.dtype, device=unit.device)
    slopes = unit @ mean
    radius = (c * c * (mean.mT @ slopes)).clamp_min(TINY)
    regular = torch.add(unit, identity, alpha=ridge) if isinstance(ridge, float) else unit + ridge * identity
    return _Ball(unit, regular, identity, torch.cat([target, -slopes], dim=-1), radius)


def _on_ball(program: _Ball, support: Tensor) -> _Found:
    """If just the rows of `support` have the least inner product: U (m + y) = τ t there."""
    system = torch.where(support, program.regular, program.identity)
    columns = torch.linalg.solve_ex(system, program.right * support)[0]
    inner = program.right.mT @ columns
    # y = τ rise + rest; its squared length is a τ² + 2 b τ + e.
    a, b, _, e = inner.flatten(-2).unsqueeze(-2).chunk(4, dim=-1)
    terms = torch.addcmul(b.square(), a, program.radius)
    square = torch.addcmul(terms, a, e, value=-1)
    level = (square.clamp_min(TINY).sqrt() - b) / a.clamp_min(TINY)
    rise, rest = columns.chunk(2, dim=-1)
    return _Found(torch.addcmul(rest, level, rise), level, square, terms)


def _exchange(program: _Ball, mean: Tensor) -> tuple[Tensor, _Found, Tensor | None]:
    """As in `pivoting`, with τ for a given support found before its rows are judged; and who is wrong in the end."""
    target, minus = program.right.chunk(2, dim=-1)
    # With the whole radius: what one row alone would be raised to. No τ is above the least of these.
    reach = (REACH * program.radius.sqrt() - minus) / target
    support = -minus <= reach.amin(dim=-2, keepdim=True) * target
    lowered = minus - 10 * ROUNDING * mean.amax(dim=-2, keepdim=True)
    last = 12 * support.shape[-2]
    for step in range(last + 1):
        found = _on_ball(program, support)
        slope = program.unit @ found.solution - torch.addcmul(lowered, found.level, target)
        length = torch.linalg.vector_norm(found.solution, 1, dim=-2, keepdim=True)
        slope = torch.add(slope, length, alpha=10 * ROUNDING)
        wrong = exchanged(torch.where(support, found.solution, slope).squeeze(-1), step).unsqueeze(-1)
        if not any_true(wrong, step):
            return support, found, None
        if step < last:
            support = support ^ wrong
    return support, found, wrong


def _otherwise(
    unit: Tensor, program: _Ball, support: Tensor, found: _Found, wrong: Tensor | None, mean: Tensor, c: float
) -> Tensor:
    """y where exchanges have not ended, or no direction improves all tasks."""
    target, slopes = program.right[..., :1], -program.right[..., 1:]
    unsolved = ~(found.square >= -1e-9 * found.terms)
    if wrong is not None:
        unsolved = unsolved | wrong.any(dim=-2, keepdim=True)
    ridge: Tensor | float = RIDGE
    if bool(unsolved.any()):
        pivots = _bisect(program)
        support = torch.where(unsolved, pivots.support.unsqueeze(-1), support)
        ridge = torch.where(unsolved, pivots.ridge, RIDGE)
        program = _ball(program.unit, target, mean, c, ridge)
        found = _on_ball(program, support)
    noise = ROUNDING * mean.amax(dim=-2, keepdim=True)
    cancelling = found.solution.sum(dim=-2, keepdim=True) > CANCELLING * (program.radius.sqrt() + noise)
    no_descent = cancelling | ((target == 0).any(dim=-2, keepdim=True) & (found.level > 0))
    cone = pivot(program.unit, -slopes.squeeze(-1))
    nearest = cone.solution.unsqueeze(-1)
    far = nearest.mT @ (program.unit @ nearest)
    no_descent = no_descent & (far <= program.radius * (1 + ACROSS))  # a thin cone's projection may be far away
    if needs_graph(unit):
        program = _ball(unit, target, mean, c, ridge)
        found = _on_ball(program, support)
        nearest = on_support(unit, cone.support, program.right[..., 1:], cone.ridge)
    return torch.where(no_descent, nearest, found.solution)


def _bisect(program: _Ball) -> Pivots:
    """The same by bisecting τ: ‖d − g_0‖ grows with it, from 0 at the least ⟨g_i, g_0⟩."""
    target, minus = program.right.unbind(dim=-1)
    radius = program.radius.squeeze(-1)
    bounds = torch.stack([-minus, radius.sqrt() - minus])  # scaled rows are shorter than 1
    low, high = torch.where(target > 0, bounds / target, torch.inf).amin(dim=-1, keepdim=True)
    for _ in range(60):
        level = (low + high) / 2
        found = pivot(program.unit, level * target + minus)
        length = (found.solution * product(program.unit, found.solution)).sum(dim=-1, keepdim=True)
        outside = length > radius
        low, high = torch.where(outside, low, level), torch.where(outside, level, high)
    return found


def _pair(gramian: Tensor, c: float) -> Tensor:
    """The shorter row alone is followed if that is best; else inner products are equal, if the ball reaches so far."""
    weights, best = _shorter(gramian, c)
    if not bool(best.all()):
        equal, reached = _equal(gramian, c)
        instead = reached & ~best
        if needs_graph(gramian):  # another Gramian in place of those whose derivatives may not be finite
            equal, _ = _equal(
                torch.where(instead, gramian, torch.eye(2, dtype=gramian.dtype, device=gramian.device)), c
            )
        weights = torch.where(instead, equal, weights)
    return weights.squeeze(-1)


def _shorter(gramian: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """v `[..., 2, 1]`, and whether the shorter row then gains less `[..., 1, 1]`; beside a zero row the mean."""
    squares = gramian.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    shorter = (squares < squares.flip(-2)) & (squares > 0)
    radius = c * gramian.mean(dim=(-2, -1), keepdim=True).clamp_min(TINY).sqrt()
    weights = 0.5 + shorter * radius / squares.clamp_min(TINY).sqrt()
    gains = gramian @ weights
    return weights, (shorter & (gains < gains.flip(-2))).any(dim=-2, keepdim=True)


def _equal(gramian: Tensor, c: float) -> tuple[Tensor, Tensor]:
    """v `[..., 2, 1]`, and whether there is such a direction `[..., 1, 1]`."""
    gaps = gramian.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).flip(-2) - gramian[..., :1, 1:]
    apart = gaps.sum(dim=-2, keepdim=True)  # ‖g_1 − g_2‖²
    same = apart == 0
    shares = gaps / (apart + same) + 0.5 * same
    # g_m = Σ shares_i g_i is orthogonal to g_1 − g_2, and g_0 = g_m + (½ − shares_1)(g_1 − g_2).
    aside = (shares[..., :1, :] - 0.5).square() * apart
    left = c * c * gramian.mean(dim=(-2, -1), keepdim=True) - aside
    onwards = (left / (shares.mT @ (gramian @ shares))).sqrt()  # ‖d − g_m‖/‖g_m‖, or NaN
    weights = shares * (1 + onwards)
    return weights, ((weights >= 0.5) & (onwards < CANCELLING)).all(dim=-2, keepdim=True)
