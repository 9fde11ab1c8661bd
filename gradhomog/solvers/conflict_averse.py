"""The best direction for the worst task within a ball around the mean: CAGrad's program."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradhomog.solvers.pivoting import BLOCKS, ROUNDING, any_true, exchanged, larger_ridges, on_support, pivot
from gradhomog.solvers.scaling import Solution, checked, needs_graph, scaled

NOISE = 0.1  # of ‖d − g_0‖²: where the ridge has more, the hull holds zero within the Gramian's rounding
ACROSS = 1e-6  # beyond the ball by rounding
TINY = 1e-200  # in place of zero: two derivatives of its root are finite


class _Ball(NamedTuple):
    """The program on scaled rows: U, U with the ridge; columns t (inverse lengths) and −U m, m the mean; c² ‖g_0‖²."""

    unit: Tensor
    regular: Tensor
    identity: Tensor
    right: Tensor
    radius: Tensor


def conflict_averse_weights(gramian: Tensor, c: float, rounding: float | None = None) -> Solution:
    """Weights of the direction that maximises min_i ⟨g_i, d⟩ over ‖d − g_0‖ ≤ c ‖g_0‖, g_0 the mean of the rows.

    Args:
        gramian: G, symmetric positive semi-definite `[..., tasks, tasks]`, any floating dtype; finite. Batches are its
            leading dimensions: not for `torch.func.vmap` and `torch.compile(fullgraph=True)`, because the number of
            steps depends on the values (read at every fourth step where that is a transfer).
        c: radius relative to ‖g_0‖, ≥ 0; 0 gives the mean.
        rounding: of G relative to the rows' norms; by default `gramian_rounding` of its dtype.

    Returns:
        v, float64 `[..., tasks]` ≥ 1/tasks: d = Σ_i v_i g_i. Where the hull of the rows holds zero up to rounding (a
        zero row, opposite rows), no direction has ⟨g_i, d⟩ > 0 for all; of those in the ball with ⟨g_i, d⟩ ≥ 0, if
        there are any, d is the nearest to g_0.

    Method: d − g_0 = Σ_i x_i g_i with x ≥ 0, and x_i > 0 only where ⟨g_i, d⟩ is least, equal to τ. For a given τ, x is
    the solution of a program that `pivot` solves; ‖d − g_0‖ grows with τ and is c ‖g_0‖ at the solution. For a given
    set of such rows x is linear in τ, so that every exchange of block principal pivoting solves for τ too; if that has
    not ended after some steps, τ is held until the set is right for it, which says on which side of it the solution
    lies. Equivalent to the dual in the paper, min over the simplex of ⟨g_w, g_0⟩ + c ‖g_0‖ ‖g_w‖, with
    x = w c ‖g_0‖/‖g_w‖.

    Differentiable twice in G wherever the set of rows with x > 0 does not change. A common factor that is a power of
    two changes no bit.

    Accuracy, float64: of both conditions up to 1e-9 max_i ‖g_i‖/tasks; where rows cancel to one part in a, up to
    1e-16 a². Float32 rows: opposite up to 1e-3 of their length counts as opposite, and conflicts are up to 1e-4.

    Cost: 0.2 to 0.5 ms for up to 16 tasks.

    Raises:
        OptionError: `gramian` is not square in its last two dimensions.

    >>> conflict_averse_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]]), c=0.5).weights
    tensor([0.5000, 1.0590], dtype=torch.float64)
    """
    gramian, rounding = checked(gramian, rounding)
    tasks = gramian.shape[-1]
    if c == 0:
        return Solution(torch.full_like(gramian[..., 0], 1 / tasks), torch.ones_like(gramian[..., 0, 0]).bool())
    factors, unit = scaled(gramian)
    target = factors.unsqueeze(-1)
    mean = (tasks * target).reciprocal().masked_fill(target == 0, 0.0)
    ridge: Tensor | float = rounding
    program = _ball(unit.detach(), target, mean, c, ridge)
    support, level, solved = _search(program, mean)
    if not bool(solved.all()):
        for larger in larger_ridges(unit.detach(), rounding):
            ridge = torch.where(solved, ridge, larger)
            program = _ball(unit.detach(), target, mean, c, ridge)
            support, level, solved = _search(program, mean)
            if bool(solved.all()):
                break
    columns, _, _ = _on_ball(program, support)
    solution = _at(columns, level)
    # The ridge is a private coordinate of each row: where others cancel, it alone keeps ⟨g_i, d⟩ above zero.
    private = ridge * solution.square().sum(dim=-2, keepdim=True)
    no_descent = (private > NOISE * program.radius) | ((target == 0).any(dim=-2, keepdim=True) & (level > 0))
    if needs_graph(unit):
        columns, level, _ = _on_ball(_ball(unit, target, mean, c, ridge), support)
        solution = _at(columns, level)
    if bool(no_descent.any()):
        right = program.right[..., 1]
        cone = pivot(program.unit, right, rounding)
        nearest = on_support(unit, cone.support, (-unit @ mean), cone.ridge)
        far = (nearest.mT @ unit @ nearest).detach()
        instead = no_descent & (far <= program.radius * (1 + ACROSS))
        solution = torch.where(instead, nearest, solution)
        solved = torch.where(instead, cone.solved.unsqueeze(-1), solved)
    weights = (1 / tasks + solution.clamp_min(0) * target).squeeze(-1)
    return Solution(weights, solved[..., 0, 0])


def _ball(unit: Tensor, target: Tensor, mean: Tensor, c: float, ridge: Tensor | float) -> _Ball:
    identity = torch.eye(unit.shape[-1], dtype=unit.dtype, device=unit.device)
    slopes = unit @ mean
    radius = (c * c * (mean.mT @ slopes)).clamp_min(TINY)
    return _Ball(unit, unit + ridge * identity, identity, torch.cat([target, -slopes], dim=-1), radius)


def _on_ball(program: _Ball, support: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U (m + y) = τ t in the rows of `support`: y = τ rise + rest as two columns, and the τ on the ball.

    If there is none, the nearest τ; the last tensor flags where there is one.
    """
    system = torch.where(support, program.regular, program.identity)
    columns = torch.linalg.solve_ex(system, program.right * support)[0]
    # The squared length of y is a τ² + 2 b τ + e.
    a, b, _, e = (program.right.mT @ columns).flatten(-2).unsqueeze(-2).chunk(4, dim=-1)
    square = b.square() - a * (e - program.radius)
    return columns, (square.clamp_min(TINY).sqrt() - b) / a.clamp_min(TINY), (square >= 0) & (a > 0)


def _at(columns: Tensor, level: Tensor) -> Tensor:
    return level * columns[..., :1] + columns[..., 1:]


def _search(program: _Ball, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows with x > 0 `[..., tasks, 1]`, τ `[..., 1, 1]`, and whether both are right `[..., 1, 1]`."""
    target, minus = program.right[..., :1], program.right[..., 1:]
    radius = program.radius.sqrt()
    bounds = torch.stack([-minus, radius - minus])  # one row alone is raised by less than the radius
    low, high = torch.where(target > 0, bounds / target, torch.inf).amin(dim=-2, keepdim=True)
    level = (low + high) / 2
    support = level * target + minus > 0
    lowered = minus - 10 * ROUNDING * mean.amax(dim=-2, keepdim=True)
    free = torch.ones_like(level, dtype=torch.bool)
    held = torch.zeros_like(level, dtype=torch.int64)  # steps for which τ has been held
    last = 2 * BLOCKS + 20 * target.shape[-2]
    for step in range(last):
        columns, root, reached = _on_ball(program, support)
        proper = (root >= low) & (root <= high)
        level = torch.where(free, torch.where(proper, root, (low + high) / 2), level)
        solution = _at(columns, level)
        length = torch.linalg.vector_norm(solution, 1, dim=-2, keepdim=True)
        slope = program.unit @ solution - torch.addcmul(lowered, level, target) + 10 * ROUNDING * length
        wrong = exchanged(torch.where(support, solution, slope).squeeze(-1), held.squeeze(-1)).unsqueeze(-1)
        right = ~wrong.any(dim=-2, keepdim=True)
        solved = right & reached & (level == root)
        if not any_true(~solved, step):
            break
        square = (level * target + minus).mul(solution).sum(dim=-2, keepdim=True)
        low = torch.where(right & (square <= program.radius), level, low)
        high = torch.where(right & (square >= program.radius), level, high)
        free = right | torch.full_like(right, step < BLOCKS)
        held = torch.where(free, 0, held + 1)
        support = support ^ wrong
    return support, level, solved
