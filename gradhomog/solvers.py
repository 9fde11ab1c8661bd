"""The N×N programs that methods share: float64, exact to rounding, free of scale, differentiable in the Gramian."""

from __future__ import annotations

import torch
from torch import Tensor

# A multiple of the identity, relative to unit-diagonal G, that keeps singular systems solvable. What it leaves of the
# optimality conditions grows with it and with the spread of the norms: 1e-13 left 1.1e-9 where opposite rows are 1e4
# times as long as a third one, 1e-14 leaves 1e-11; below, the rounding of the solves is as large.
RIDGE = 1e-14


def minimum_norm_weights(gramian: Tensor) -> Tensor:
    """Weights of the shortest vector in the convex hull of the rows: argmin of αᵀGα over α ≥ 0, Σα = 1.

    Args:
        gramian: G, symmetric positive semi-definite `[tasks, tasks]`, any floating dtype; finite.

    Returns:
        α, float64 `[tasks]` in [0, 1], Σα = 1. If a row is zero, α is that task (the first of several).

    Method: min ½xᵀGx − 1ᵀx over x ≥ 0 has the solution x = α/αᵀGα, and unlike the simplex form it may be rescaled row
    by row; solved on the unit-diagonal Gramian by the active-set method of Lawson and Hanson (1974, chapter 23), which
    ends after finitely many N×N solves. Two rows: the closed form.

    Differentiable in G wherever the set of positive weights does not change: the last system is solved with the graph.
    Cost: about N solves of at most N×N, on the CPU; 0.05 ms for two tasks, about 1 ms for 16.
    """
    gramian = gramian.double()
    tasks = gramian.shape[-1]
    with torch.no_grad():
        squares = gramian.diagonal().clamp_min(0)
        zero = squares == 0
        if tasks == 1 or bool(zero.any()):
            chosen = int(zero.to(torch.int64).argmax()) if tasks > 1 else 0
            return torch.nn.functional.one_hot(torch.tensor(chosen), tasks).to(gramian)
        support = _pair_support(gramian) if tasks == 2 else _support(gramian.cpu())
    return _weights_on(gramian, support)


def _pair_support(gramian: Tensor) -> list[int]:
    # α_1 = (G_22 − G_12)/(G_11 + G_22 − 2 G_12), clipped to [0, 1]
    (first, inner), (_, second) = gramian.tolist()
    if second <= inner:
        return [1] if first > inner else [int(second < first)]
    return [0] if first <= inner else [0, 1]


def _scaled(gramian: Tensor, index: list[int]) -> tuple[Tensor, Tensor]:
    """Norms and the unit-diagonal Gramian of some rows, with the ridge."""
    part = gramian[index][:, index]
    norms = part.diagonal().sqrt()
    unit = part / norms[:, None] / norms[None, :]
    return norms, unit + RIDGE * torch.eye(len(index), dtype=unit.dtype, device=unit.device)


def _weights_on(gramian: Tensor, support: list[int]) -> Tensor:
    """The weights when exactly the tasks of `support` have some: x = G⁻¹1 there, normalised; with the graph."""
    norms, unit = _scaled(gramian, support)
    target = norms.min() / norms  # 1/n, up to a factor that the normalisation removes
    scaled = torch.linalg.solve(unit, target) / norms * norms.min()
    weights = torch.zeros(gramian.shape[-1], dtype=gramian.dtype, device=gramian.device)
    share = (scaled / scaled.sum()).clamp_min(0)
    return weights.index_put((torch.tensor(support, device=gramian.device),), share / share.sum())


def _support(gramian: Tensor) -> list[int]:
    """The tasks with positive weight: Lawson–Hanson on y = n·x, min ½yᵀUy − (1/n)ᵀy, y ≥ 0, U of unit diagonal."""
    tasks = gramian.shape[0]
    norms, unit = _scaled(gramian, list(range(tasks)))
    target = norms.min() / norms
    y = torch.zeros(tasks, dtype=torch.float64)
    active: list[int] = []
    for _ in range(3 * tasks + 10):
        slope = target - unit @ y
        slope[active] = -torch.inf
        entering = int(slope.argmax())
        # Relative to the terms that cancel in the slope: no gain beyond rounding is left.
        if slope[entering] <= 1e-12 * (target[entering] + unit[entering].abs() @ y):
            break
        active.append(entering)
        while True:
            trial = torch.linalg.solve(unit[active][:, active], target[active])
            if bool((trial > 0).all()):
                break
            step, leaving = min((float(y[i] / (y[i] - trial[k])), i) for k, i in enumerate(active) if trial[k] <= 0)
            y[active] += step * (trial - y[active])
            active = [i for i in active if i != leaving and y[i] > 0]
            y[[i for i in range(tasks) if i not in active]] = 0
        y = torch.zeros_like(y).index_put((torch.tensor(active),), trial)
    return sorted(active)
