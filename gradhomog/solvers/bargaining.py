"""Bargaining weights: the equations of Nash-MTL and FairGrad."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.solvers.pivoting import solve
from gradhomog.solvers.scaling import Array, Flags, Solution, checked, needs_graph, to_numpy, to_tensor

CLOSE = 3e-4  # the last change but one is that small, relative to each weight: quadratic convergence leaves 1e-13
STEPS = 100  # 5 on average, 97 for the hardest of 1,500 random Gramians that have a solution
# Of 4,000 random Gramians with norms up to 1e8 apart, none that has a solution failed from 0.5 to 20; at 0.25 2 %.
SMALLEST_ALPHA, LARGEST_ALPHA = 0.25, 20


@np.errstate(all="ignore")
def bargaining_weights(gramian: Tensor, alpha: float = 1.0, rounding: float | None = None) -> Solution:
    """The w > 0 with Gw = w^(−1/α) in every entry; `alpha=1` is the Nash bargaining solution w_i (Gw)_i = 1.

    Args:
        gramian: G, symmetric positive semi-definite `[..., tasks, tasks]`, any floating dtype; finite. Batches are its
            leading dimensions: not for `torch.func.vmap` and `torch.compile(fullgraph=True)`, because the search is in
            NumPy, on the CPU.
        alpha: in [0.25, 20], the larger the fairer: 0 would weight all alike, infinity serve the worst task only.
            Outside that range weights of rows that agree differ by more orders of magnitude than float64 can hold in
            one sum.
        rounding: of G relative to the rows' norms; by default `gramian_rounding` of its dtype.

    Returns:
        w, float64 `[..., tasks]` > 0. Zero rows are left out and have w_i = 0. There is no solution where the hull of
        the others holds zero: all w are zero, the disagreement point. So they are where the rounding
        of one term of w_i^p Σ_j G_ij w_j = 1 reaches 1: for α = 1 rows that are opposite up to 1e-3 (float32) or 1e-7
        (float64) of their length.

    Method: with p = 1/α and v_i = w_i/a_i, where a_i = G_ii^(−1/(1+p)) solves it for orthogonal rows, B v = v^(−p)
    with B_ij = a_i^p G_ij a_j, whose diagonal is 1. These are the stationarity conditions of a strictly convex function
    of w, ½wᵀGw − Σ_i log w_i for p = 1. Newton's method, (B + p diag v^(−p−1)) Δ = v^(−p) − B v, from v = 1. A fall
    by the fraction u of v_i is taken as a division by (1 + u/k)^k, k = α but from 1 to 2, so that no weight becomes
    negative: as good near the solution, and in fewer steps from afar than the step length for all that
    self-concordance guarantees (12 instead of 21 for α = 20). Two tasks with α = 1: the closed form.

    Differentiable twice in G: the last step and one more are taken with the graph, from the iterate before as a
    constant.

    Accuracy: |w_i^p (Gw)_i − 1| ≤ 1e-10, or 4e-15 Σ_j w_i^p |G_ij| w_j if that is more.

    Cost: 0.2 ms for up to 16 tasks; 1 to 4 ms where there is no solution.

    Source: Navon et al. 2022, arXiv 2202.01017, claim 3.1; Ban and Ji 2024, arXiv 2402.15638, equation 4.

    Raises:
        OptionError: `gramian` is not square in its last two dimensions, or `alpha` out of its range.

    >>> bargaining_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]])).weights
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    if not SMALLEST_ALPHA <= alpha <= LARGEST_ALPHA:
        raise OptionError(f"`alpha` must be in [{SMALLEST_ALPHA}, {LARGEST_ALPHA}]; got {alpha!r}.")
    gramian, rounding = checked(gramian, rounding)
    power = 1 / alpha
    if gramian.shape[-1] == 2 and power == 1:
        return _pair(gramian, rounding)
    numbers = to_numpy(gramian)
    squares = np.diagonal(numbers, axis1=-2, axis2=-1)[..., None]
    absent = squares <= 0
    alone = np.where(absent, 1.0, squares) ** (-1 / (1 + power))
    identity = np.eye(gramian.shape[-1])
    mutual = ~(absent | absent.mT)  # a zero row becomes a separate task with weight 1
    factors = alone**power * alone.mT * mutual
    matrix = factors * numbers + absent * identity
    shares, settled, lost = _search(matrix, identity, power, rounding)
    none = lost | ~settled
    if none.any():  # solved by ones, for finite derivatives
        absent, shares = absent | none, np.where(none, 1.0, shares)
        matrix, factors = np.where(none, identity, matrix), np.where(none, 0.0, factors)
    if needs_graph(gramian):
        same = gramian - gramian.detach()  # zero, with the graph
        moving, unit = to_tensor(matrix, gramian) + to_tensor(factors, gramian) * same, to_tensor(identity, gramian)
        found = to_tensor(shares, gramian)
        for _ in range(2):  # the first has the right first derivative, the next the second
            found = found + _newton(moving, unit, found, power)
    else:
        found = to_tensor(shares + _newton(matrix, identity, shares, power), gramian)
    weights = to_tensor(alone * ~absent, gramian) * found
    return Solution(weights.squeeze(-1), to_tensor((settled | lost)[..., 0, 0], gramian))


def _newton(matrix: Any, identity: Any, shares: Any, power: float) -> Any:
    """Δ for v = `shares`, `[..., tasks, 1]`; of arrays or tensors."""
    pull = shares**-power
    return solve(matrix + power * identity * (pull / shares), pull - matrix @ shares)


def _search(matrix: Array, identity: Array, power: float, rounding: float) -> tuple[Array, Flags, Flags]:
    """v up to `CLOSE`, `[..., tasks, 1]`; whether it is that close, and whether there is none, `[..., 1, 1]`."""
    shares = np.ones_like(matrix[..., :1])  # right for orthogonal rows
    sizes = np.abs(matrix)
    bend = min(max(1 / power, 1.0), 2.0)
    lost = np.zeros_like(matrix[..., :1, :1], dtype=bool)
    for _ in range(STEPS):
        relative = _newton(matrix, identity, shares, power) / shares
        # 1 + u upwards; 1/(1 − u/k)^k downwards, which is positive.
        shares = shares * (np.maximum(relative, 0.0) + (1 - np.minimum(relative, 0.0) / bend) ** -bend)
        settled = (np.abs(relative) <= CLOSE).all(axis=-2, keepdims=True)
        # Terms of an equation whose rounding is as large as their sum, 1.
        terms = shares**power * sizes * shares.mT
        lost = lost | (rounding * terms.max(axis=(-2, -1), keepdims=True) > 1)
        if (settled | lost).all():
            break
    return shares, settled, lost


def _pair(gramian: Tensor, rounding: float) -> Solution:
    """w_i² = P/(G_ii (P + G_12)), P = ‖g_1‖ ‖g_2‖: the two equations w_i (Gw)_i = 1."""
    squares = gramian.diagonal(dim1=-2, dim2=-1)
    absent = squares <= 0
    squares = squares.masked_fill(absent, 1.0)
    lengths = squares.prod(dim=-1, keepdim=True).sqrt()
    room = lengths + gramian[..., 0, 1:].masked_fill(absent.any(dim=-1, keepdim=True), 0.0)
    absent = absent | (room < rounding * lengths)  # opposite rows
    weights = (lengths / (room.masked_fill(absent, 1.0) * squares)).sqrt().masked_fill(absent, 0.0)
    return Solution(weights, torch.ones_like(room, dtype=torch.bool).squeeze(-1))
