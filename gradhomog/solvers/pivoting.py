"""Minimize ½yᵀUy − bᵀy over y ≥ 0 for a batch of scaled Gramians, by block principal pivoting.

The search for the positive entries runs in NumPy on the CPU: for such small matrices PyTorch calls take two to three
times as long (measured), and on another device every decision would require a transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradhomog.solvers.scaling import Array, Flags, to_tensor

# A multiple of the identity that makes programs with dependent rows solvable. It causes an error of the same size in
# the optimality conditions, relative to the lengths that are summed. For 2,000 random Gramians with up to 32 rows,
# 3e-16 left 1 % without a solution, and 1e-15 none.
RIDGE = 4e-15
# Derivatives that are negative by less count as zero, relative to the terms that cancel in them.
ROUNDING = 1e-14
# Largest number of matrix entries in one batch of systems: larger batches take more memory and are not faster.
MAX_BATCH_ENTRIES = 2**20
# Exchanges of all wrong entries at once, which nearly always suffice (2 on average), before single exchanges.
BLOCK_EXCHANGES = 6


@dataclass(frozen=True)
class Pivots:
    """The result of pivoting.

    Attributes:
        solution: y ≥ 0 `[..., tasks]`.
        support: mask of the entries that may be positive, bool `[..., tasks]`.
        ridge: the ridge that was added to U, `[..., 1]`.
        solved: True if the optimality conditions hold, bool `[..., 1]`.
    """

    solution: Array
    support: Flags
    ridge: Array
    solved: Flags


def pivot(matrix: Array, target: Array, rounding: float) -> Pivots:
    """Solve y ≥ 0, r = Uy − b ≥ 0, y·r = 0 for U = `matrix` (symmetric, positive semi-definite), b = `target`.

    `matrix` `[..., tasks, tasks]` and `target` `[..., tasks]` broadcast: one matrix may serve many targets.

    An entry of the support with y_i < 0 leaves it, another entry with r_i < 0 enters it (block principal pivoting,
    Júdice and Pires 1994; Kim and Park 2011, doi 10.1137/110821172). `RIDGE` makes programs with dependent rows
    solvable. If exchanges cycle, because rounding has made U indefinite (dependent float32 rows), a larger ridge is
    used, see `larger_ridges`.
    """
    if target.ndim == 2 and matrix.ndim == 2 and len(target) > (size := max(MAX_BATCH_ENTRIES // len(matrix) ** 2, 1)):
        parts = [pivot(matrix, target[start : start + size], rounding) for start in range(0, len(target), size)]
        return Pivots(*(np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])))
    support = target > 0
    ridge = np.full((*target.shape[:-1], 1), RIDGE)
    if not support.any():
        return Pivots(np.zeros_like(target), support, ridge, np.ones_like(ridge, dtype=bool))
    solution, support, solved = exchange(matrix, target, support, RIDGE, BLOCK_EXCHANGES)
    if not solved.all():
        for larger in larger_ridges(matrix, rounding):
            again, places, now = exchange(matrix, target, support, larger, 12 * target.shape[-1])
            solution, support = np.where(solved, solution, again), np.where(solved, support, places)
            ridge = np.where(solved, ridge, larger[..., 0])
            solved = solved | now
            if solved.all():
                break
    return Pivots(np.maximum(solution, 0.0), support, ridge, solved)


def larger_ridges(matrix: Array, rounding: float) -> tuple[Array, Array]:
    """Return a ridge that makes each matrix positive definite, `[..., 1, 1]`, and a larger one if exchanges cycle."""
    least = np.linalg.eigvalsh(matrix)[..., :1, None]  # negative by rounding: −1e-7 for float32 rows
    ridge: Array = rounding - 2 * np.minimum(least, 0.0)
    return ridge, 1e3 * ridge


def exchange(
    matrix: Array, target: Array, support: Flags, ridge: Array | float, last: int
) -> tuple[Array, Flags, Flags]:
    """Return y, the support, and a flag for optimality, after at most `last` exchanges."""
    identity = np.eye(target.shape[-1])
    regular = matrix + ridge * identity
    lowered = target - ROUNDING
    for step in range(last + 1):
        whole = np.where(support[..., None], regular, identity)
        solution = solve(whole, (target * support)[..., None])[..., 0]
        terms = np.abs(solution).sum(-1, keepdims=True)
        slope = product(matrix, solution) - lowered + ROUNDING * terms
        wrong = entries_to_exchange(np.where(support, solution, slope), step)
        if step == last or not wrong.any():
            break
        support = support ^ wrong
    return solution, support, np.logical_not(wrong.any(axis=-1, keepdims=True))


def entries_to_exchange(margins: Array, step: int | npt.NDArray[np.int64]) -> Flags:
    """Return the entries with a negative margin (or NaN) that enter or leave the support at a step.

    All of them; after `BLOCK_EXCHANGES` steps only the entry with the smallest margin. For 1,500 programs with 12 to 32
    tasks that block exchanges do not solve, single exchanges ended within 34 steps.
    """
    wrong: Flags = ~(margins >= 0)
    if isinstance(step, int) and step < BLOCK_EXCHANGES:
        return wrong
    worst = np.where(wrong, np.nan_to_num(margins, nan=-np.inf), np.inf).argmin(axis=-1)[..., None]
    alone = wrong & (np.arange(margins.shape[-1]) == worst)
    return alone if isinstance(step, int) else np.where(step < BLOCK_EXCHANGES, wrong, alone)


def solve(matrix: Any, right: Any) -> Any:
    """Solve matrix · x = right, `[..., tasks, columns]`, for arrays or tensors; not finite for a singular matrix."""
    if isinstance(matrix, Tensor):
        return torch.linalg.solve_ex(matrix, right)[0]
    try:
        return np.linalg.solve(matrix, right)
    except np.linalg.LinAlgError:  # at least one matrix of the batch is singular: solve them one by one
        shape = np.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
        matrix, right = (np.broadcast_to(array, shape + array.shape[-2:]) for array in (matrix, right))
        if not shape:
            return np.full_like(right, np.nan)
        return np.stack([solve(*pair) for pair in zip(matrix, right, strict=True)])


def product(matrix: Any, vector: Any) -> Any:
    """Multiply symmetric matrices `[..., tasks, tasks]`, or one matrix for all, by vectors `[..., tasks]`."""
    return vector @ matrix if matrix.ndim == 2 else (vector[..., None, :] @ matrix)[..., 0, :]


def on_support(matrix: Tensor, support: Flags, right: Tensor, ridge: Array) -> Tensor:
    """Solve (U + ridge·1) x = right in the rows of `support`, x = 0 elsewhere; `right` is `[..., tasks, columns]`.

    Twice differentiable w.r.t. the matrix and the right-hand side. `ridge` is `[..., 1]`.
    """
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    rows = to_tensor(support, matrix).unsqueeze(-1)
    regular = matrix + to_tensor(ridge, matrix).unsqueeze(-1) * identity
    found: Tensor = solve(torch.where(rows, regular, identity), right * rows)
    return found
