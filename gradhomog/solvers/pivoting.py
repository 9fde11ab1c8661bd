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


def pivot(matrix: Array, target: Array, rounding: float) -> Pivots:
    """Solve y ≥ 0, r = Uy − b ≥ 0, y·r = 0 for U = `matrix` (symmetric, positive semi-definite), b = `target`.

    `matrix` is `[tasks, tasks]`, `target` `[..., tasks]`.

    An entry of the support with y_i < 0 leaves it, another entry with r_i < 0 enters it (block principal pivoting,
    Júdice and Pires 1994; Kim and Park 2011, doi 10.1137/110821172). `least_ridge` makes programs with dependent rows
    solvable.
    """
    support = target > 0
    if not support.any():
        return Pivots(np.zeros_like(target), support, 0.0, np.ones_like(support[..., 0]))
    ridge, identity = least_ridge(matrix, rounding), np.eye(len(matrix))
    regular = matrix + ridge * identity
    solution, changed = np.zeros(target.shape), np.ones_like(support)
    fewest, since = np.inf, np.zeros(1)
    for _ in range(20 * len(identity) + 1):
        if len(matrix) > LARGE:
            for found, inside, right, moved in zip(
                *(each.reshape(-1, len(matrix)) for each in (solution, support, target, changed)), strict=True
            ):
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
        changed = entries_to_exchange(margins, since)
        support = support ^ changed
    return Pivots(np.maximum(solution, 0.0), support, ridge, np.logical_not(wrong.any(-1)))


def least_ridge(matrix: Array, rounding: float) -> float:
    """Return the multiple of the identity that makes a matrix positive definite beyond its rounding.

    Without it, the inverse of a matrix of dependent rows consists of rounding, and its weights may be 10⁶. A ridge ρ
    violates the optimality conditions by ρ times the weights, and rounding ε changes the weights by up to ε/ρ: so ρ is
    of the size of ε.
    """
    least = float(np.linalg.eigvalsh(matrix)[0])  # negative by rounding: down to −1e-6 for float32 rows
    return LEAST_RIDGE + 0.1 * rounding - 2 * min(least, 0.0)


def entries_to_exchange(margins: Array, since: Array) -> Flags:
    """Return the entries with a negative margin (or NaN) that enter or leave the support.

    All of them; if their number has not fallen for `since` exchanges, `[..., 1]`, only the entry with the smallest
    margin, and in the end only the last entry, which cannot cycle (Murty 1974). For 2,500 programs with up to 32
    dependent float32 rows this took 7 exchanges on average and at most 260; without the second rule 12 and 470.
    """
    wrong: Flags = ~(margins >= 0)
    if since.max() < BLOCK_EXCHANGES:
        return wrong
    places = np.arange(margins.shape[-1])
    order = np.where(since < 3 * len(places), margins, -places)
    single = wrong & (places == np.where(wrong, order, np.inf).argmin(axis=-1)[..., None])
    return np.where(since < BLOCK_EXCHANGES, wrong, single)


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
