"""The active-set method for the shortest vector in a convex hull: slower than pivoting, without a ridge."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog.solvers.pivoting import ROUNDING, any_true


def bordered(unit: Tensor, target: Tensor) -> Tensor:
    """[[U, −t], [tᵀ, 1]] of `[..., tasks, tasks]` and `[..., tasks]`: U y = μ t and tᵀy + μ = 1 together.

    The same as (U + ttᵀ) y = t, of which the squares of t may be lost beside U, where norms are 1e8 apart.
    """
    column, row = target.unsqueeze(-1), target.unsqueeze(-2)
    corner = torch.ones_like(column[..., :1, :])
    return torch.cat([torch.cat([unit, -column], dim=-1), torch.cat([row, corner], dim=-1)], dim=-2)


def active_set(unit: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Minimise ½yᵀUy + ½(1 − tᵀy)² over y ≥ 0 by the algorithm of Lawson and Hanson 1974.

    Chapter 23 there (with the least distance program of section 23.4), which is also the minimum-norm-point method of
    Wolfe 1976. Rows enter that are independent of those in (with t as one entry more), so no system is singular, also
    where the hull holds zero. U = `unit` and t = `target` are detached.

    Rounding may make it cycle where rows nearly cancel: the best iterate is returned.

    Returns:
        y `[..., tasks]`, the entries that are positive, and whether the algorithm has ended `[..., 1]`.
    """
    matrix = bordered(unit, target)
    tasks = target.shape[-1]
    identity = torch.eye(tasks + 1, dtype=unit.dtype, device=unit.device)
    places = torch.arange(tasks + 1, device=unit.device)
    is_task = places < tasks
    x = identity[-1].expand(matrix.shape[:-1]).clone()  # y and μ
    right, sizes = x.clone(), matrix.abs()
    inside = (~is_task).expand(x.shape)
    refused, best, best_inside = torch.zeros_like(inside), x, inside
    done = torch.zeros_like(inside[..., :1])
    least_violation = torch.full_like(x[..., :1], torch.inf)
    for tick in range(4 * tasks + 20):
        wanted = torch.linalg.solve_ex(torch.where(inside.unsqueeze(-1), matrix, identity), right)[0]
        wanted = wanted.nan_to_num(-1.0, -1.0, -1.0)  # singular by rounding: the row that entered last leaves again
        # Towards it, as far as all stay positive: a row that would not leaves the set.
        falling = inside & is_task & ~(wanted > 0)
        shares = torch.where(falling, x / (x - wanted), 1.0).nan_to_num(0.0, 0.0, 0.0)
        share = shares.amin(dim=-1, keepdim=True)
        arrived = ~falling.any(dim=-1, keepdim=True)
        x = torch.where(falling & (shares <= share), 0.0, x + share * (wanted - x))
        kept = inside & ((x > 0) | ~is_task)
        # The optimality conditions, relative to the terms that cancel in them.
        slope = (matrix @ x.unsqueeze(-1)).squeeze(-1)
        rounding = ROUNDING * (sizes @ x.abs().unsqueeze(-1)).squeeze(-1)
        violation = torch.where(is_task, torch.where(kept, slope.abs(), -slope) / rounding, 0.0)
        violation = violation.nan_to_num(0.0, torch.inf, 0.0).amax(dim=-1, keepdim=True)
        better = (violation < least_violation) & ~done
        best, best_inside = torch.where(better, x, best), torch.where(better, kept, best_inside)
        least_violation = torch.where(better, violation, least_violation)
        # A row that cannot become positive has entered by rounding: not again before the vector has moved.
        refused = (refused | (inside & ~kept)) & ~arrived & (share <= 0)
        slopes = torch.where(is_task & ~inside & ~refused, slope, torch.inf)
        enters = arrived & (places == slopes.argmin(dim=-1, keepdim=True)) & (slopes < -rounding)
        done = done | (violation <= 1) | (arrived & ~enters.any(dim=-1, keepdim=True))
        inside = kept | enters
        if not any_true(~done, tick):
            break
    return best[..., :-1], best_inside[..., :-1], done
