"""Minimize ½yᵀUy − bᵀy over y ≥ 0 for a scaled Gramian and one or several b, by block principal pivoting.

The search for the positive entries runs in NumPy on the CPU: for such small matrices PyTorch calls take two to three
times as long (measured), and on another device every decision would require a transfer.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gradhomog.solvers.scaling import Array, Flags, to_tensor

# For the rounding of the systems' solution in float64: with 1e-15, 1 in 40,000 programs with dependent rows had none.
LEAST_RIDGE = 3e-15
# Derivatives that are negative by less count as zero, relative to the terms that cancel in them.
ROUNDING = 1e-14
# Number of tasks above which a batch of whole systems, with ones on the diagonal of rows outside the support, is slower
# than systems without these rows, one by one where the support has changed: 8.8 and 3.6 ms for 64 vectors of 64 tasks.
LARGE = 32
# Exchanges of all wrong entries for which their number need not fall, before single exchanges (Kim and Park 2011).
BLOCK_EXCHANGES = 3
# Number of exchanges after which the active-set method is used. Where the hull of twice as many rows as dimensions
# nearly contains zero, single exchanges need thousands, and some programs do not end.
MAX_EXCHANGES = 10
# Ridges that lead to the smallest one: each support is near the next. For 256 vectors of 256 rows of rank 128 the
# active-set method then makes 100 steps instead of 41,000 (measured).
RIDGES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)


class Pivots(NamedTuple):
    """The result of pivoting.

    Attributes:
        solution: y ≥ 0 `[..., tasks]`.
        support: mask of the entries that may be positive, bool `[..., tasks]`.
        ridge: the ridge that was added to U.
        solved: True if the optimality conditions hold, bool `[...]`.
    """

    solution: Array
    support: Flags
    ridge: float
    solved: Flags


def pivot(
    matrix: Array, target: Array, rounding: float, ridge: float | None = None, start: Flags | None = None
) -> Pivots:
    """Solve y ≥ 0, r = Uy − b ≥ 0, y·r = 0 for U = `matrix` (symmetric, positive semi-definite), b = `target`.

    `matrix` is `[tasks, tasks]`, `target` and `start`, the first support, `[..., tasks]`.

    An entry of the support with y_i < 0 leaves it, another entry with r_i < 0 enters it (block principal pivoting,
    Júdice and Pires 1994; Kim and Park 2011, doi 10.1137/110821172). The ridge makes programs with dependent rows
    solvable; see `least_ridge`. Vectors for which this does not end are solved for a decreasing ridge, if necessary by
    `active_set`.
    """
    shape, target = target.shape, target.reshape(-1, len(matrix))
    support = target > 0
    if not support.any():
        return Pivots(np.zeros(shape), support.reshape(shape), 0.0, np.ones(shape[:-1], dtype=np.bool_))
    support = support if start is None else start.reshape(target.shape)
    ridge, identity = least_ridge(matrix, rounding) if ridge is None else ridge, np.eye(len(matrix))
    solution, support, solved = _exchange(matrix, matrix + ridge * identity, target, support)
    if not solved.all():
        hard, targets = ~solved, target[~solved]
        found, inside = np.zeros(targets.shape), targets > 0
        for larger in (*(each for each in RIDGES if each > ridge), ridge):
            regular, before = matrix + larger * identity, found
            found, inside, ended = _exchange(matrix, regular, targets, inside)
            for index in np.flatnonzero(~ended):
                found[index], inside[index], ended[index] = active_set(
                    regular, targets[index], np.maximum(before[index], 0.0), ROUNDING
                )
        solution[hard], support[hard], solved[hard] = found, inside, ended
    return Pivots(np.maximum(solution, 0.0).reshape(shape), support.reshape(shape), ridge, solved.reshape(shape[:-1]))


def _exchange(matrix: Array, regular: Array, target: Array, support: Flags) -> tuple[Array, Flags, Any]:
    """Return y, its support and if it is exact, after at most `MAX_EXCHANGES`; `regular` is U with the ridge.

    `target` and `support` are `[count, tasks]`.
    """
    identity, solution, changed = np.eye(len(matrix)), np.zeros(target.shape), np.ones_like(support)
    fewest, since = np.inf, np.zeros(1)
    for _ in range(MAX_EXCHANGES):
        if len(matrix) > LARGE:
            for found, inside, right, moved in zip(solution, support, target, changed, strict=True):
                if moved.any():
                    found[:] = 0.0
                    found[inside] = solve(regular[inside][:, inside], right[inside, None])[:, 0]
        else:
            whole = np.where(support[..., None], regular, identity)
            solution = solve(whole, (target * support)[..., None])[..., 0]
        terms = np.abs(solution).sum(-1, keepdims=True)
        slope = solution @ matrix - target + ROUNDING * (1 + terms)
        margins = np.where(support, solution, slope)
        wrong = ~(margins >= 0)
        if not wrong.any():
            break
        count = wrong.sum(-1, keepdims=True)
        since = np.where(count < fewest, 0, since + 1)
        fewest = np.minimum(fewest, count)
        # All wrong entries; if their number has not fallen for some exchanges, only the one with the smallest margin.
        smallest = np.where(wrong, margins, np.inf).argmin(axis=-1)[:, None]
        changed = wrong & ((since < BLOCK_EXCHANGES) | (np.arange(len(matrix)) == smallest))
        support = support ^ changed
    return solution, support, ~wrong.any(-1)


def active_set(
    matrix: Array, right: Array, start: Array, rounding: float, signed: bool | Flags = True
) -> tuple[Array, Flags, bool]:
    """Minimize ½xᵀMx − bᵀx over x ≥ 0 for M = `matrix`, b = `right` by the algorithm of Lawson and Hanson 1974.

    Every step decreases the objective, so it ends, but it changes one entry at a time. Rounding can cause cycles if
    rows nearly cancel; then the best iterate is returned.

    Args:
        start: x ≥ 0, the first iterate.
        rounding: violations of the optimality conditions that count as zero, relative to the terms that cancel in them.
        signed: mask of the entries that must be ≥ 0; others are multipliers.

    Returns:
        x, a mask of the entries that may be positive, and a flag for termination.
    """
    sizes, x, inside = np.abs(matrix), start, ~(signed & (start <= 0))
    best, best_inside, least_violation = x, inside, np.inf
    for _ in range(4 * len(x) + 20):
        wanted = np.zeros_like(x)
        wanted[inside] = solve(matrix[inside][:, inside], right[inside, None])[:, 0]
        # A singular system: the row that entered last leaves the set.
        wanted[inside] = np.nan_to_num(wanted[inside], nan=-1.0, posinf=-1.0, neginf=-1.0)
        # Move towards it until an entry becomes zero; that row leaves the set.
        falling = inside & signed & ~(wanted > 0)
        shares = np.nan_to_num(np.where(falling, x / (x - wanted), 1.0), nan=0.0, posinf=0.0, neginf=0.0)
        share = shares.min()
        x = np.where(falling & (shares <= share), 0.0, x + share * (wanted - x))
        kept = inside & ~(signed & (x <= 0))
        slope, tolerance = matrix @ x - right, rounding * (sizes @ np.abs(x) + np.abs(right))
        violations = np.where(signed, np.where(kept, np.abs(slope), -slope) / tolerance, 0.0)
        violation = np.nan_to_num(violations, nan=0.0, posinf=np.inf, neginf=0.0).max()
        if violation < least_violation:
            best, best_inside, least_violation = x, kept, violation
        arrived = not falling.any()
        slopes = np.where(signed & ~kept, slope, np.inf)
        entering = slopes.argmin()
        if violation <= 1 or (arrived and not slopes[entering] < -tolerance[entering]):
            return best, best_inside, True
        inside = kept | (arrived & (np.arange(len(x)) == entering))
    return best, best_inside, False


def least_ridge(matrix: Array, rounding: float) -> float:
    """Return the multiple of the identity that makes a matrix positive definite beyond its rounding.

    Without it, the inverse of a matrix of dependent rows consists of rounding, and its weights may be 10⁶. A ridge ρ
    violates the optimality conditions by ρ times the weights, and rounding ε changes the weights by up to ε/ρ: so ρ is
    of the size of ε.
    """
    least = float(np.linalg.eigvalsh(matrix)[0])  # negative by rounding: down to −1e-6 for float32 rows
    return LEAST_RIDGE + 0.1 * rounding - 2 * min(least, 0.0)


def solve(matrix: Any, right: Any) -> Any:
    """Solve matrix · x = right, `[..., tasks, columns]`, for arrays or tensors; not finite for a singular matrix."""
    if isinstance(matrix, Tensor):
        return torch.linalg.solve_ex(matrix, right)[0]
    try:
        return np.linalg.solve(matrix, right)
    except np.linalg.LinAlgError:  # at least one of several matrices is singular: solve them one by one
        if matrix.ndim == 2:
            return np.full_like(right, np.nan)
        return np.stack([solve(*pair) for pair in zip(matrix, right, strict=True)])


def on_support(matrix: Tensor, support: Flags, right: Tensor, ridge: float = 0.0) -> Tensor:
    """Solve (U + ridge·1) x = right in the rows of `support`, x = 0 elsewhere; `right` is `[..., tasks, columns]`.

    Twice differentiable w.r.t. the matrix and the right-hand side.
    """
    identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    rows = to_tensor(support, matrix).unsqueeze(-1)
    found: Tensor = solve(torch.where(rows, matrix + ridge * identity, identity), right * rows)
    return found
