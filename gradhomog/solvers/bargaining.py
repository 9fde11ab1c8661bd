"""Weights in balance with what they give: the equations of Nash-MTL and FairGrad."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.solvers.scaling import checked, needs_graph

# Where one w_i g_i is 1e4 times as long as their sum, rows count as opposite: no direction improves all tasks. Gramians
# of float32 rows could not tell more. This is of the squares.
CANCELLING = 1e8
LOST = 1e12  # terms of w_i^p (Gw)_i = 1 whose rounding leaves three digits of their sum
CLOSE = 3e-4  # the last step but one is that small, relative to each weight: quadratic convergence leaves 1e-13
NEAR = 0.1  # falls below that are steps of Newton's method as it stands, for its quadratic convergence
STEPS = 100
# Of 4,000 random Gramians with norms up to 1e8 apart, none that has a solution failed from 0.5 to 20; at 0.25 2 %.
SMALLEST_ALPHA, LARGEST_ALPHA = 0.25, 20
EARLY = 8  # steps that nearly always suffice, and before which no more than their length is looked at
LEAST = 0.3  # sum of a row for the start: a lower one, which may be negative, says little (0.1 and 1 take more steps)


def bargaining_weights(gramian: Tensor, alpha: float = 1.0) -> Tensor:
    """The w > 0 with Gw = w^(−1/α) in every entry; `alpha=1` is the Nash bargaining solution w_i (Gw)_i = 1.

    Args:
        gramian: G, symmetric positive semi-definite `[..., tasks, tasks]`, any floating dtype; finite. Batches are its
            leading dimensions: not for `torch.func.vmap` and `torch.compile(fullgraph=True)`, as the loop asks whether
            to go on (at every fourth step where that is a transfer).
        alpha: in [0.25, 20], the more the fairer: 0 would weigh all alike, infinity serve the worst task only. Outside
            that range weights of rows that agree differ by more orders of magnitude than float64 can hold in one sum.

    Returns:
        w, float64 `[..., tasks]` > 0. Zero rows are left out and have w_i = 0. Where there is no solution, which is
        where the hull of the others holds zero (up to a ten-thousandth of their length), all w are zero: the
        disagreement point.

    Method: with p = 1/α and v_i = w_i/a_i, where a_i = G_ii^(−1/(1+p)) would solve it for orthogonal rows, B v = v^(−p)
    with B_ij = a_i^p G_ij a_j, whose diagonal is 1. These are the stationarity conditions of a strictly convex function
    of w, ½wᵀGw − Σ_i log w_i for p = 1. Newton's method, (B + p diag v^(−p−1)) Δ = v^(−p) − B v, from the row sums to
    the power −1/(1+p), which is right up to squares of the cosines. v_i + Δ_i where that is more; a fall by the
    fraction u is taken as a division by (1 + u/k)^k, k = α but from 1 to 2, so that no weight becomes negative: as
    good near the solution, and in fewer steps from afar than the step length for all that self-concordance
    guarantees (12 instead of 21 for α = 20). Two tasks with α = 1: the closed form w_i = 1/(‖g_i‖ √(1 + cos)).

    Differentiable twice in G: the last step and one more are taken with the graph, from what was before as a constant.
    For α = 1 a common factor of the rows that is a power of two changes no bit of w beside that factor.

    Accuracy: |w_i^p (Gw)_i − 1| ≤ 1e-10, or 4e-15 Σ_j w_i^p |G_ij| w_j if that is more.

    Cost: 0.03 ms for two tasks with α = 1, else 0.15 ms for two to four and 0.2 ms for 16 (5 steps on average); 0.8 ms
    where there is no solution.

    Source: Navon et al. 2022, arXiv 2202.01017, claim 3.1; Ban and Ji 2024, arXiv 2402.15638, equation 4.

    Raises:
        OptionError: `gramian` is not square in its last two dimensions, or `alpha` out of its range.

    >>> bargaining_weights(torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    if not SMALLEST_ALPHA <= alpha <= LARGEST_ALPHA:
        raise OptionError(f"`alpha` must be in [{SMALLEST_ALPHA}, {LARGEST_ALPHA}]; got {alpha!r}.")
    gramian, power = checked(gramian), 1 / alpha
    if gramian.shape[-1] == 2 and power == 1:
        return _pair(gramian)
    squares = gramian.detach().diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    absent = squares <= 0
    alone = squares.masked_fill(absent, 1.0).pow(-1 / (1 + power))
    identity = torch.eye(gramian.shape[-1], dtype=gramian.dtype, device=gramian.device)
    # A zero row is a task of its own, in balance with 1.
    scaled = (alone.pow(power) * gramian * alone.mT).masked_fill(absent | absent.mT, 0.0)
    matrix = torch.addcmul(scaled, identity, absent)
    shares, unsolved = _solve(matrix.detach(), identity, alone, power)
    if unsolved is not None:
        absent, shares = absent | unsolved, shares.masked_fill(unsolved, 1.0)
        matrix = torch.where(unsolved, identity, matrix)  # whose solution that is, for finite derivatives
    for _ in range(2 if needs_graph(gramian) else 1):  # the first has the right first derivative, the next the second
        shares = shares + _newton(matrix, identity, shares, power)
    return (alone * shares).masked_fill(absent, 0.0).squeeze(-1)


def _newton(matrix: Tensor, identity: Tensor, shares: Tensor, power: float) -> Tensor:
    """Δ for v = `shares`, `[..., tasks, 1]`."""
    pull = shares.pow(-power)
    system = torch.addcmul(matrix, identity, pull / shares, value=power)
    change: Tensor = torch.linalg.solve_ex(system, pull - matrix @ shares)[0]
    return change


def _solve(matrix: Tensor, identity: Tensor, alone: Tensor, power: float) -> tuple[Tensor, Tensor | None]:
    """v up to `CLOSE`, `[..., tasks, 1]`, and where there is none, `[..., 1, 1]`: None if everywhere there is one."""
    shares = matrix.sum(dim=-1, keepdim=True).clamp_min(LEAST).pow(-1 / (1 + power))
    bend = min(max(1 / power, 1.0), 2.0)
    cheap = matrix.is_cpu  # to look at values
    hopeless: Tensor | bool = False
    for step in range(STEPS):
        change = _newton(matrix, identity, shares, power)
        relative = change / shares
        looking = cheap or step % 4 == 3
        lowest, highest = map(float, relative.aminmax()) if looking else (-math.inf, math.inf)
        before, shares = shares, shares + change
        if not lowest > -NEAR:
            shares = before * (1 + relative.clamp_min(0)) / (1 - relative.clamp_max(0) / bend).pow(bend)
        if step < EARLY:
            if max(-lowest, highest) <= CLOSE:
                return shares, None
        else:
            settled = (relative.abs() <= CLOSE).all(dim=-2, keepdim=True)
            hopeless = hopeless | _vanishing(matrix, alone, before, relative > CLOSE, power)
            if looking and bool((settled | hopeless).all()):
                break
    return shares, ~settled | hopeless


def _vanishing(matrix: Tensor, alone: Tensor, shares: Tensor, growing: Tensor, power: float) -> Tensor:
    """Whether a weight grows further although the sum is as good as zero beside it, `[..., 1, 1]`."""
    terms = (shares.pow(power) * matrix * shares.mT).abs().sum(dim=-1, keepdim=True)
    parts = alone.pow(1 - power) * shares  # of wᵀGw
    whole = (parts * (matrix @ shares)).sum(dim=-2, keepdim=True)
    vanishing = (parts * shares > CANCELLING * whole) | (terms > LOST)
    return (growing & vanishing).any(dim=-2, keepdim=True)


def _pair(gramian: Tensor) -> Tensor:
    """w_i² = P/(G_ii (P + G_12)), P = ‖g_1‖ ‖g_2‖."""
    squares = gramian.diagonal(dim1=-2, dim2=-1)
    absent = squares <= 0
    squares = squares.masked_fill(absent, 1.0)
    lengths = squares.prod(dim=-1, keepdim=True).sqrt()
    room = lengths + gramian[..., 0, 1:].masked_fill(absent.any(dim=-1, keepdim=True), 0.0)
    absent = absent | (room * CANCELLING <= 2 * lengths)
    return (lengths / (room.masked_fill(absent, 1.0) * squares)).sqrt().masked_fill(absent, 0.0)
