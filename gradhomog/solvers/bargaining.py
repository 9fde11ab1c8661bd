"""Bargaining weights: the equations of Nash-MTL and FairGrad."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.solvers.pivoting import solve
from gradhomog.solvers.scaling import Array, ScaledGramian, Solution, for_each_gramian, needs_graph

TOLERANCE = 3e-4  # relative change of the second-to-last step: by quadratic convergence the last one leaves 1e-13
MAX_STEPS = 100  # 5 on average, at most 97 for 1,500 random Gramians that have a solution
# For 4,000 random Gramians with norms up to 1e8 apart, no solvable one failed for α from 0.5 to 20; at 0.25, 2 % did.
SMALLEST_ALPHA, LARGEST_ALPHA = 0.25, 20


@for_each_gramian
def bargaining_weights(gramian: Tensor, alpha: float = 1.0, rounding: float | None = None) -> Solution:
    """Return the w > 0 with Gw = w^(−1/α) in every entry; `alpha=1` is the Nash bargaining solution w_i (Gw)_i = 1.

    Args:
        gramian: G, symmetric positive semi-definite `[..., tasks, tasks]`, any floating dtype; finite. Leading
            dimensions are a batch. `torch.func.vmap` and `torch.compile(fullgraph=True)` are not supported, because the
            search runs in NumPy on the CPU.
        alpha: in [0.25, 20]; a larger value is fairer: 0 would weight all tasks equally, infinity would maximize the
            worst task only. Outside of this range, the weights of rows that agree differ by more orders of magnitude
            than float64 can represent in one sum.
        rounding: rounding of G relative to the rows' norms; by default `gramian_rounding` of its dtype.

    Returns:
        w, float64 `[..., tasks]` > 0. Zero rows are excluded and have w_i = 0. If the hull of the others contains zero,
        there is no solution: all w are zero, the disagreement point. The same applies if the rounding of one term of
        w_i^p Σ_j G_ij w_j = 1 reaches 1: for α = 1, to rows that are opposite up to 1e-3 (float32) or 1e-7 (float64) of
        their length.

    Method: with p = 1/α and v_i = w_i/a_i, where a_i = G_ii^(−1/(1+p)) is the solution for orthogonal rows, the
    equations are B v = v^(−p) with B_ij = a_i^p G_ij a_j, whose diagonal is 1. They are the stationarity conditions of
    a strictly convex function of w, ½wᵀGw − Σ_i log w_i for p = 1. Newton's method solves them, with
    (B + p diag v^(−p−1)) Δ = v^(−p) − B v, from v = 1. A decrease of v_i by the fraction u is replaced by a division by
    (1 + u/k)^k, k = α clipped to [1, 2], so that no weight becomes negative. Near the solution it is equivalent; far
    from it, it requires fewer steps than the common step length that self-concordance guarantees (12 instead of 21 for
    α = 20). For two tasks with α = 1 the closed form is used.

    Twice differentiable w.r.t. G: the last Newton step and one more are computed with the graph, from the previous
    iterate as a constant.

    Accuracy: |w_i^p (Gw)_i − 1| ≤ 1e-10, or 4e-15 Σ_j w_i^p |G_ij| w_j if that is larger.

    Cost: 0.2 ms for up to 16 tasks; 1 to 4 ms if there is no solution.

    Source: Navon et al. 2022, arXiv 2202.01017, claim 3.1; Ban and Ji 2024, arXiv 2402.15638, equation 4.

    Raises:
        OptionError: `gramian` is not square in its last two dimensions, or `alpha` is out of range.

    >>> bargaining_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]])).weights
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    if not SMALLEST_ALPHA <= alpha <= LARGEST_ALPHA:
        raise OptionError(f"`alpha` must be in [{SMALLEST_ALPHA}, {LARGEST_ALPHA}]; got {alpha!r}.")
    program = ScaledGramian(gramian, rounding)
    power, numbers = 1 / alpha, program.numbers
    if len(gramian) == 2 and power == 1:
        return _pair(program.gramian, program.rounding)
    squares, identity = numbers.diagonal()[:, None], np.eye(len(numbers))
    absent = squares <= 0
    alone = np.where(absent, 1.0, squares) ** (-1 / (1 + power))
    mutual = ~(absent | absent.T)  # a zero row becomes a separate task with weight 1
    factors = alone**power * alone.T * mutual
    matrix = factors * numbers + absent * identity
    shares, settled, lost = _search(matrix, identity, power, program.rounding)
    if lost or not settled:
        return Solution(torch.zeros_like(program.gramian[0]), torch.as_tensor(lost or settled, device=gramian.device))
    if needs_graph(gramian):
        change = program.gramian - program.gramian.detach()  # zero, with the graph
        moving, unit = program.tensor(matrix) + program.tensor(factors) * change, program.tensor(identity)
        found = program.tensor(shares)
        for _ in range(2):  # the first step makes the first derivative exact, the second step the second derivative
            found = found + _newton(moving, unit, found, power)
    else:
        found = program.tensor(shares + _newton(matrix, identity, shares, power))
    weights = program.tensor(alone * ~absent) * found
    return Solution(weights[:, 0], torch.ones_like(weights[0, 0], dtype=torch.bool))


def _newton(matrix: Any, identity: Any, shares: Any, power: float) -> Any:
    """Return the Newton step Δ for v = `shares`, `[tasks, 1]`; for arrays or tensors."""
    pull = shares**-power
    return solve(matrix + power * identity * (pull / shares), pull - matrix @ shares)


def _search(matrix: Array, identity: Array, power: float, rounding: float) -> tuple[Array, bool, bool]:
    """Return v up to `TOLERANCE`, `[tasks, 1]`; if it has converged, and if there is no solution."""
    shares = np.ones_like(matrix[:, :1])  # the solution for orthogonal rows
    sizes, bend = np.abs(matrix), min(max(1 / power, 1.0), 2.0)
    settled = lost = False
    for _ in range(MAX_STEPS):
        relative = _newton(matrix, identity, shares, power) / shares
        # An increase is 1 + u; a decrease is 1/(1 − u/k)^k, which is positive.
        shares = shares * (np.maximum(relative, 0.0) + (1 - np.minimum(relative, 0.0) / bend) ** -bend)
        settled = bool((np.abs(relative) <= TOLERANCE).all())
        # No solution if the rounding of one term of an equation is as large as the sum of its terms, 1.
        lost = bool(rounding * (shares**power * sizes * shares.T).max() > 1)
        if settled or lost:
            break
    return shares, settled, lost


def _pair(gramian: Tensor, rounding: float) -> Solution:
    """Return w_i² = P/(G_ii (P + G_12)), P = ‖g_1‖ ‖g_2‖, the solution of w_i (Gw)_i = 1 for two tasks."""
    squares = gramian.diagonal()
    absent = squares <= 0
    squares = squares.masked_fill(absent, 1.0)
    length = squares.prod().sqrt()
    room = length + gramian[0, 1].masked_fill(absent.any(), 0.0)
    absent = absent | (room < rounding * length)  # opposite rows
    weights = (length / (room.masked_fill(absent.all(), 1.0) * squares)).sqrt().masked_fill(absent, 0.0)
    return Solution(weights, torch.ones_like(room, dtype=torch.bool))
