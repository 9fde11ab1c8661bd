"""The shortest vector in the convex hull of the rows: MGDA's program."""

import numpy as np
import torch
from torch import Tensor

from gradhomog.solvers.pivoting import active_set, on_support, pivot
from gradhomog.solvers.scaling import Array, Flags, ScaledGramian, Solution, for_each_gramian, needs_graph

# Largest violation of the optimality conditions, relative to ‖g_i‖ · min_j ‖g_j‖. Pivoting exceeds it if the hull of
# long rows contains zero and another row is short, because the ridge is then large in comparison. The active-set method
# is then used: for 2 % of the random Gramians of this kind.
MAX_VIOLATION = 1e-11
TINY = 1e-300  # replaces zero if all rows are zero


@for_each_gramian
def minimum_norm_weights(gramian: Tensor, rounding: float | None = None) -> Solution:
    """Return weights of the shortest vector in the convex hull of the rows: argmin of αᵀGα over α ≥ 0, Σα = 1.

    Args:
        gramian: G, symmetric positive semi-definite `[..., tasks, tasks]`, any floating dtype; finite. Leading
            dimensions are a batch. `torch.func.vmap` and `torch.compile(fullgraph=True)` are not supported, because the
            search runs in NumPy on the CPU.
        rounding: rounding of G relative to the rows' norms, for dependent rows; by default `gramian_rounding` of its
            dtype.

    Returns:
        α, float64 `[..., tasks]` in [0, 1], Σα = 1. If there are zero rows, they share the weight equally.

    Method: x = α/αᵀGα minimizes ½xᵀGx − 1ᵀx over x ≥ 0. Up to its length, the same x minimizes ½xᵀGx + ½(1 − 1ᵀx)²,
    which is bounded even if the hull contains zero. That program is solved on the scaled Gramian
    (`scaling.ScaledGramian`) by block principal pivoting, or, if the optimality conditions are not met, by the
    active-set method. Scaling replaces 1ᵀ by tᵀ, the inverse lengths, so that the multipliers of long rows are small.
    For two rows the closed form is used.

    Twice differentiable w.r.t. G if the set of positive weights does not change: the last system is solved with the
    graph. A common factor that is a power of two does not change the result, to the last bit.

    Accuracy: (Gα)_i ≥ λ and α_i (Gα)_i = α_i λ up to 1e-9 ‖g_i‖ min_j ‖g_j‖, for 10,000 random Gramians with up to 32
    rows and norms over eight orders of magnitude, including dependent, opposite and zero rows; if rows nearly cancel,
    up to the rounding of their sum. A weight whose exact value is zero may be 1e-16 by rounding.

    Cost: 0.2 ms for 2 to 16 tasks (about two systems of 16 × 16), 1 to 3 ms with the active-set method.

    Raises:
        OptionError: `gramian` is not square in its last two dimensions.

    >>> minimum_norm_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]])).weights
    tensor([0.2000, 0.8000], dtype=torch.float64)
    """
    program = ScaledGramian(gramian, rounding)
    if len(gramian) == 2:
        return _pair(program.gramian)
    absent = program.factors == 0
    target = program.factors / np.maximum(program.factors.max(), TINY)
    if absent.any():
        target = absent.astype(np.float64)
    shares, support, ridge, solved = _search(program.unit, target, program.rounding)
    times, solution = program.tensor(target), program.tensor(shares)
    if needs_graph(gramian):
        solution = _solution_with_graph(program, times, support, ridge)
    weights = times * solution
    return Solution(weights / weights.sum(), torch.as_tensor(solved, device=gramian.device))


def _search(unit: Array, target: Array, rounding: float) -> tuple[Array, Flags, float, bool]:
    """Return y, the mask of entries that may be positive, the ridge, and a flag for convergence."""
    found = pivot(unit + np.outer(target, target), target, rounding)
    length = target @ found.solution
    slope = found.solution @ unit + target * (length - 1)
    violation = np.maximum(-slope, np.abs(slope) * target * found.solution).max()
    if found.solved and violation <= length * (MAX_VIOLATION + 10 * found.ridge):
        return found.solution, found.support, found.ridge, True
    return _active_set(unit, target, rounding)


def _solution_with_graph(program: ScaledGramian, target: Tensor, support: Flags, ridge: float) -> Tensor:
    """Solve for y on its support: U y = μ t and tᵀy + μ = 1, U with the ridge.

    Equivalent to (U + ttᵀ) y = t, in which the squares of t may be lost to rounding beside U if norms are 1e8 apart.
    """
    tasks, last = len(target), torch.nn.functional.pad(target, (0, 1), value=1.0)
    unit = program.differentiable_unit() + ridge * torch.eye(tasks, dtype=target.dtype, device=target.device)
    system = torch.cat([torch.cat([unit, -target[:, None]], dim=1), last[None]])
    right = torch.zeros_like(last)
    right[-1] = 1.0
    return on_support(system, np.append(support, True), right[:, None])[:-1, 0]


def _pair(gramian: Tensor) -> Solution:
    """Return α_1 = (G_22 − G_12)/(G_11 + G_22 − 2 G_12), clipped to [0, 1], and α_2; both are 1/2 for equal rows."""
    gaps = (gramian.diagonal().flip(0) - gramian[0, 1]).clamp_min(0)
    total = gaps.sum()
    equal = total == 0
    weights = torch.where(equal, 0.5, gaps / torch.where(equal, 1.0, total))
    return Solution(weights, torch.ones_like(equal))


def _active_set(unit: Array, target: Array, rounding: float) -> tuple[Array, Flags, float, bool]:
    """Return the result of `_search` for y ≥ 0 and the multiplier μ: U y = μ t and tᵀy + μ = 1.

    That is the least distance program of Lawson and Hanson, section 23.4; the algorithm is equivalent to the
    minimum-norm-point method of Wolfe 1976. A row enters the set only if it is independent of the rows in it (with t as
    one more entry), so that no system is singular without a ridge, even if the hull contains zero.
    """
    last = np.append(np.zeros_like(target), 1.0)
    matrix = np.block([[unit, -target[:, None]], [target, 1.0]])
    solution, support, solved = active_set(matrix, last, last, rounding, last == 0)
    return solution[:-1], support[:-1], 0.0, solved
