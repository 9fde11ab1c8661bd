"""The active-set method for the shortest vector in a convex hull; slower than pivoting, but needs no ridge."""

from __future__ import annotations

import numpy as np

from gradhomog.solvers.pivoting import solve
from gradhomog.solvers.scaling import Array, Flags


@np.errstate(divide="ignore", invalid="ignore")
def active_set(unit: Array, target: Array, rounding: float) -> tuple[Array, Flags, Flags]:
    """Minimize ½yᵀUy + ½(1 − tᵀy)² over y ≥ 0 by the algorithm of Lawson and Hanson 1974.

    See their chapter 23 (with the least distance program of section 23.4). The algorithm is equivalent to the
    minimum-norm-point method of Wolfe 1976. A row enters the set only if it is independent of the rows in it (with t as
    one more entry), so that no system is singular, even if the hull contains zero.

    Each system consists of U y = μ t and tᵀy + μ = 1.

    Rounding can cause cycles if rows nearly cancel; then the best iterate is returned.

    Returns:
        y `[..., tasks]`, a mask of its positive entries, and a flag for termination `[..., 1]`.
    """
    tasks = target.shape[-1]
    matrix = np.ones((*target.shape[:-1], tasks + 1, tasks + 1))
    matrix[..., :-1, :-1], matrix[..., :-1, -1], matrix[..., -1, :-1] = unit, -target, target
    identity = np.eye(tasks + 1)
    places = np.arange(tasks + 1)
    is_task = places < tasks
    x = np.broadcast_to(identity[-1], matrix.shape[:-1])  # y and μ
    right, sizes = x[..., None], np.abs(matrix)
    inside = np.broadcast_to(~is_task, x.shape)
    blocked, best, best_inside = np.zeros_like(inside), x, inside
    done = np.zeros_like(inside[..., :1])
    least_violation = np.full_like(x[..., :1], np.inf)
    for _ in range(4 * tasks + 20):
        wanted = solve(np.where(inside[..., None], matrix, identity), right)[..., 0]
        # A singular system: the row that entered last leaves the set.
        wanted = np.nan_to_num(wanted, nan=-1.0, posinf=-1.0, neginf=-1.0)
        # Move towards it until an entry becomes zero; that row leaves the set.
        falling = inside & is_task & ~(wanted > 0)
        shares = np.nan_to_num(np.where(falling, x / (x - wanted), 1.0), nan=0.0, posinf=0.0, neginf=0.0)
        share = shares.min(axis=-1, keepdims=True)
        arrived = ~falling.any(axis=-1, keepdims=True)
        x = np.where(falling & (shares <= share), 0.0, x + share * (wanted - x))
        kept = inside & ((x > 0) | ~is_task)
        # Violation of the optimality conditions, relative to the terms that cancel in them.
        slope = (matrix @ x[..., None])[..., 0]
        tolerance = rounding * (sizes @ np.abs(x)[..., None])[..., 0]
        violation = np.where(is_task, np.where(kept, np.abs(slope), -slope) / tolerance, 0.0)
        violation = np.nan_to_num(violation, nan=0.0, posinf=np.inf, neginf=0.0).max(axis=-1, keepdims=True)
        better = (violation < least_violation) & ~done
        best, best_inside = np.where(better, x, best), np.where(better, kept, best_inside)
        least_violation = np.where(better, violation, least_violation)
        # A row that cannot become positive entered because of rounding; it must not enter again before y has changed.
        blocked = (blocked | (inside & ~kept)) & ~arrived & (share <= 0)
        slopes = np.where(is_task & ~inside & ~blocked, slope, np.inf)
        enters = arrived & (places == slopes.argmin(axis=-1)[..., None]) & (slopes < -tolerance)
        done = done | (violation <= 1) | (arrived & ~enters.any(axis=-1, keepdims=True))
        inside = kept | enters
        if done.all():
            break
    return best[..., :-1], best_inside[..., :-1], done
