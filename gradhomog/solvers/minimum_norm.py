"""The shortest vector in the convex hull of the rows: MGDA's program."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradhomog.solvers.active_set import active_set
from gradhomog.solvers.pivoting import on_support, pivot, product
from gradhomog.solvers.scaling import (
    Array,
    Flags,
    Solution,
    checked,
    needs_graph,
    scaled,
    scaled_with_graph,
    to_numpy,
    to_tensor,
)

# Relative to ‖g_i‖ · min_j ‖g_j‖. Pivoting leaves more where long rows hold zero in their hull, beside a short one: its
# ridge is then no longer small. 2 % of random Gramians made for that purpose go on to the active set.
ACCEPTED = 1e-11
TINY = 1e-300  # in place of zero where all rows are zero


def minimum_norm_weights(gramian: Tensor, rounding: float | None = None) -> Solution:
    """Weights of the shortest vector in the convex hull of the rows: argmin of αᵀGα over α ≥ 0, Σα = 1.

    Args:
        gramian: G, symmetric positive semi-definite `[..., tasks, tasks]`, any floating dtype; finite. Batches are its
            leading dimensions: not for `torch.func.vmap` and `torch.compile(fullgraph=True)`, because the search is in
            NumPy, on the CPU.
        rounding: of G relative to the rows' norms, for rows that are dependent; by default `gramian_rounding` of its
            dtype.

    Returns:
        α, float64 `[..., tasks]` in [0, 1], Σα = 1. If rows are zero, they share the weight equally.

    Method: x = α/αᵀGα minimises ½xᵀGx − 1ᵀx over x ≥ 0, and so does, up to its length, the minimiser of
    ½xᵀGx + ½(1 − 1ᵀx)², which is bounded also where the hull holds zero. On the scaled Gramian (`scaling.scaled`) by
    block principal pivoting; where that leaves the optimality conditions open, by an active set. 1ᵀ becomes
    tᵀ, the inverse lengths: multipliers of long rows count little. Two rows: the closed form.

    Differentiable twice in G wherever the set of positive weights does not change: the last system is solved with the
    graph. A common factor that is a power of two changes no bit.

    Accuracy: (Gα)_i ≥ λ and α_i (Gα)_i = α_i λ up to 1e-9 ‖g_i‖ min_j ‖g_j‖, of 10,000 random Gramians with up to 32
    rows, norms over eight orders of magnitude, dependent, opposite and zero rows among them; where rows nearly cancel,
    up to the rounding of their sum. A weight that ought to be zero may be rounding, 1e-16.

    Cost: 0.2 ms for 2 to 16 tasks (about two systems of 16 × 16), 1 to 3 ms with the active set.

    Raises:
        OptionError: `gramian` is not square in its last two dimensions.

    >>> minimum_norm_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]])).weights
    tensor([0.2000, 0.8000], dtype=torch.float64)
    """
    gramian, rounding = checked(gramian, rounding)
    if gramian.shape[-1] == 2:
        return _pair(gramian)
    factors, unit = scaled(to_numpy(gramian))
    absent = factors == 0
    target = factors / np.maximum(factors.max(axis=-1, keepdims=True), TINY)
    if absent.any():
        target = np.where(absent.any(axis=-1, keepdims=True), absent.astype(np.float64), target)
    shares, support, ridge, solved = _search(unit, target, rounding)
    times = to_tensor(target, gramian)
    solution = to_tensor(shares, gramian)
    if needs_graph(gramian):
        again = scaled_with_graph(gramian, to_tensor(factors, gramian))
        solution = _solution_with_graph(again, times, support, ridge)
    weights = times * solution
    return Solution(weights / weights.sum(dim=-1, keepdim=True), to_tensor(solved[..., 0], gramian))


def _search(unit: Array, target: Array, rounding: float) -> tuple[Array, Flags, Array, Flags]:
    """y, the entries that may be positive, the ridge y is a solution for, and whether it is one, both `[..., 1]`."""
    found = pivot(unit + target[..., :, None] * target[..., None, :], target, rounding)
    length = (target * found.solution).sum(-1, keepdims=True)
    slope = product(unit, found.solution) + target * (length - 1)
    violation = np.maximum(-slope, np.abs(slope) * target * found.solution).max(axis=-1, keepdims=True)
    solved = found.solved & (violation <= length * (ACCEPTED + 10 * found.ridge))
    if solved.all():
        return found.solution, found.support, found.ridge, solved
    solution, support, done = active_set(unit, target)
    return (
        np.where(solved, found.solution, solution),
        np.where(solved, found.support, support),
        np.where(solved, found.ridge, 0.0),
        solved | done,
    )


def _solution_with_graph(unit: Tensor, target: Tensor, support: Flags, ridge: Array) -> Tensor:
    """y on its support: U y = μ t and tᵀy + μ = 1 together, U with the ridge.

    The same as (U + ttᵀ) y = t, of which the squares of t may be lost beside U, where norms are 1e8 apart.
    """
    identity = torch.eye(unit.shape[-1], dtype=unit.dtype, device=unit.device)
    column, row = target.unsqueeze(-1), target.unsqueeze(-2)
    corner = torch.ones_like(column[..., :1, :])
    regular = unit + to_tensor(ridge, unit).unsqueeze(-1) * identity
    system = torch.cat([torch.cat([regular, -column], dim=-1), torch.cat([row, corner], dim=-1)], dim=-2)
    inside = np.concatenate([support, np.ones_like(support[..., :1])], axis=-1)
    right = torch.nn.functional.pad(torch.zeros_like(target), (0, 1), value=1.0).unsqueeze(-1)
    return on_support(system, inside, right, np.zeros_like(ridge)).squeeze(-1)[..., :-1]


def _pair(gramian: Tensor) -> Solution:
    """α_1 = (G_22 − G_12)/(G_11 + G_22 − 2 G_12), clipped to [0, 1]; equal rows share equally."""
    gaps = (gramian.diagonal(dim1=-2, dim2=-1).flip(-1) - gramian[..., 0, 1:]).clamp_min(0)
    total = gaps.sum(dim=-1, keepdim=True)
    equal = total == 0
    weights = torch.where(equal, 0.5, gaps / torch.where(equal, 1.0, total))
    return Solution(weights, torch.ones_like(equal).squeeze(-1))
