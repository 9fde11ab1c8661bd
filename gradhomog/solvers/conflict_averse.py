"""The direction in a ball around the mean that is best for the worst task: CAGrad's program."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.solvers import pivoting
from gradhomog.solvers.scaling import Array, Flags, ScaledGramian, Solution, for_each_gramian, needs_graph

NOISE = 0.1  # share of the ridge in ‖d − g_0‖² above which the hull contains zero within the Gramian's rounding
RADIUS_TOLERANCE = 1e-6  # relative tolerance of the ball's radius for rounding
MAX_LEVELS = 100
LEVEL_ROUNDING = 1e-15  # relative width of the bounds of τ at which the search ends
TINY = 1e-200  # replaces zero, so that the first two derivatives of its square root are finite


class _Ball(NamedTuple):
    """The program on scaled rows, in arrays or tensors.

    In order: U; U with the ridge; the identity; the columns t (inverse lengths) and −U m, with the weights m of the
    mean; c² ‖g_0‖².
    """

    unit: Any
    regular: Any
    identity: Any
    right: Any
    radius: Any


@for_each_gramian
def conflict_averse_weights(gramian: Tensor, c: float, rounding: float | None = None) -> Solution:
    """Return weights of the direction that maximizes min_i ⟨g_i, d⟩ over ‖d − g_0‖ ≤ c ‖g_0‖, g_0 the mean of the rows.

    Args:
        gramian: G, symmetric positive semi-definite `[..., tasks, tasks]`, any floating dtype; finite. Leading
            dimensions are a batch. `torch.func.vmap` and `torch.compile(fullgraph=True)` are not supported, because the
            search runs in NumPy on the CPU.
        c: radius relative to ‖g_0‖, ≥ 0; 0 gives the mean.
        rounding: rounding of G relative to the rows' norms; by default `gramian_rounding` of its dtype.

    Returns:
        v, float64 `[..., tasks]` ≥ 1/tasks: d = Σ_i v_i g_i. If the hull of the rows contains zero up to rounding (a
        zero row, opposite rows), no direction has ⟨g_i, d⟩ > 0 for all i. In this case d is the projection of g_0 on
        the directions in the ball with ⟨g_i, d⟩ ≥ 0 for all i, if the ball contains such a direction.

    Method: d − g_0 = Σ_i x_i g_i with x ≥ 0, and x_i > 0 only if ⟨g_i, d⟩ has the smallest value, τ. For a given τ, x
    is the solution of a program that `pivot` solves; ‖d − g_0‖ increases with τ and is c ‖g_0‖ at the solution. For a
    given set of rows with x_i > 0, x is linear in τ, so that the next τ is the one at which this set is on the ball,
    or, if it is not between the bounds of τ, their mean. Equivalent to the dual in the paper, min over the simplex of
    ⟨g_w, g_0⟩ + c ‖g_0‖ ‖g_w‖, with x = w c ‖g_0‖/‖g_w‖.

    Twice differentiable w.r.t. G if the set of rows with x > 0 does not change. A common factor that is a power of two
    does not change the result, to the last bit.

    Accuracy for float64: both conditions hold up to 1e-9 max_i ‖g_i‖/tasks; if rows cancel to one part in a, up to
    1e-16 a². For float32 rows: rows that are opposite up to 1e-3 of their length (bfloat16: 1e-2) count as opposite,
    and conflicts are up to 1e-4.

    Cost: 0.3 to 0.5 ms for up to 16 tasks, at most 0.01 s for 64 and 0.2 s for 256, for rows of any rank.

    Raises:
        OptionError: `gramian` is not square in its last two dimensions, or `c` is out of range.

    >>> conflict_averse_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]]), c=0.5).weights
    tensor([0.5000, 1.0590], dtype=torch.float64)
    """
    if not 0 <= c < np.inf:
        raise OptionError(f"`c` must be finite and non-negative; got {c!r}.")
    scaled, tasks = ScaledGramian(gramian, rounding), len(gramian)
    if c == 0:
        plain = torch.full_like(scaled.gramian[0], 1 / tasks)
        return Solution(plain, torch.ones_like(plain[0], dtype=torch.bool))
    factors, unit, identity = scaled.factors, scaled.unit, np.eye(tasks)
    # Lengths are relative to the longest row, so that their squares and `TINY` have the same meaning in every unit.
    target = (factors / np.where(factors > 0, factors, np.inf).min())[:, None]
    mean = np.divide(1 / tasks, target, out=np.zeros_like(target), where=target > 0)
    ridge = pivoting.least_ridge(unit, scaled.rounding)
    program = _ball(unit, target, mean, c, ridge * identity, identity)
    if (mean.T @ unit @ mean).item() <= ridge * mean.sum() ** 2:  # a mean that is rounding has no ball: d = g_0
        solution, support, level, solved = np.zeros_like(mean), np.zeros_like(mean, dtype=np.bool_), 0.0, True
    else:
        solution, support, level, solved = _search(program, ridge)
    cone = None
    # The ridge acts as a separate coordinate of each row: if the other coordinates cancel, ⟨g_i, d⟩ > 0 only by it.
    if ridge * (solution**2).sum() > NOISE * program.radius or ((target == 0).any() and level > 0):
        found_cone = _pivot(unit, program.right[:, 1:], ridge)
        if (found_cone.solution.T @ unit @ found_cone.solution).item() <= program.radius * (1 + RADIUS_TOLERANCE):
            cone, solution, solved = found_cone, found_cone.solution, bool(found_cone.solved)
    found = scaled.tensor(solution)
    if needs_graph(gramian):
        again, one = scaled.differentiable_unit(), scaled.tensor(identity)
        moving = _ball(again, scaled.tensor(target), scaled.tensor(mean), c, ridge * one, one)
        if cone is None:
            found = _at(*_on_ball(moving, scaled.tensor(support))[:2])
        else:
            found = pivoting.on_support(again, cone.support[:, 0], moving.right[:, 1:], cone.ridge)
    weights = (1 / tasks + found.clamp_min(0) * scaled.tensor(target)).squeeze(-1)
    return Solution(weights, torch.as_tensor(solved, device=gramian.device))


def _ball(unit: Any, target: Any, mean: Any, c: float, ridge: Any, identity: Any) -> _Ball:
    slopes = unit @ mean
    radius = (c * c * (mean.T @ slopes)[0, 0]).clip(TINY)
    library: Any = torch if isinstance(unit, Tensor) else np
    return _Ball(unit, unit + ridge, identity, library.concat([target, -slopes], axis=1), radius)


def _on_ball(program: _Ball, support: Any) -> tuple[Any, Any, Any]:
    """Solve U (m + y) = τ t in the rows of `support`: return y as two columns (y = τ a + b), and the τ on the ball.

    If no τ is on the ball, the nearest τ is returned, and the last result, a flag, is False.
    """
    system = support * program.regular + ~support * program.identity
    columns = pivoting.solve(system, program.right * support)
    # The squared length of y is a τ² + 2 b τ + e, with numbers a, b, e.
    products = program.right.T @ columns
    a, b, e = products[0, 0], products[0, 1], products[1, 1]
    square = b * b - a * (e - program.radius)
    return columns, (square.clip(TINY) ** 0.5 - b) / a.clip(TINY), (square >= 0) & (a > 0)


def _at(columns: Any, level: Any) -> Any:
    return level * columns[:, :1] + columns[:, 1:]


def _pivot(unit: Array, target: Array, ridge: float, start: Flags | None = None) -> pivoting.Pivots:
    """Return `pivot` of a target of any size `[tasks, 1]`: it counts derivatives below 1e-14 as zero."""
    size = np.ldexp(1.0, np.frexp(np.abs(target).max())[1])
    found = pivoting.pivot(unit, target[:, 0] / size, pivoting.ROUNDING, ridge, start)
    return found._replace(solution=found.solution[:, None] * size, support=found.support[:, None])


def _search(program: _Ball, ridge: float) -> tuple[Array, Flags, float, bool]:
    """Return y and the rows with y > 0 `[tasks, 1]`, τ, and a flag for convergence."""
    target, minus = program.right[:, :1], program.right[:, 1:]
    # Bounds of τ: within the ball, ⟨g_i, d⟩ of one row increases by less than the radius times its norm.
    low, high = (np.where(target > 0, ends / target, np.inf).min() for ends in (-minus, program.radius**0.5 - minus))
    level, solved, start = (low + high) / 2, False, None
    for _ in range(MAX_LEVELS):
        found = _pivot(program.unit, level * target + minus, ridge, start)
        start = found.support
        columns, root, reached = _on_ball(program, found.support)
        solved = bool(found.solved and reached and (level == root or high - low <= LEVEL_ROUNDING * abs(high)))
        if solved:
            break
        square = ((level * target + minus) * found.solution).sum()
        low, high = (level, high) if square <= program.radius else (low, level)
        level = root if reached and low <= root <= high else (low + high) / 2
    return _at(columns, level), found.support, level, solved
