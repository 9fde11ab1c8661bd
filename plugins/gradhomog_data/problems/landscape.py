"""The two-dimensional toy landscape of CAGrad: Adam minimizes two losses of a point from the starts of the paper."""

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Len
from torch import Tensor, nn

from gradhomog import Evaluation, OptimizerMetric, Problem, ProblemRun, StepReport

Point = Annotated[Sequence[float], Len(2, 2)]

STARTS = ((-8.5, 7.5), (-8.5, -5.0), (9.0, 9.0))
"""Starts in the authors' code for the paper's Figure 1. Section 5.1 lists five points; two of them are among these."""

_FLOOR = 0.000005


def toy_losses(point: Tensor) -> Tensor:
    """Return both losses `[..., 2]` of points `[..., 2]`, differentiable.

    With t = tanh(−x₂), u = max(tanh(x₂/2), 0) and v = max(tanh(−x₂/2), 0):

        L₁ = u (log max(|½(−x₁ − 7) − t|, 5·10⁻⁶) + 6)     + v (((−x₁ + 7)² + (−x₂ − 8)²/10)/10 − 20)
        L₂ = u (log max(|½(−x₁ + 3) + t + 2|, 5·10⁻⁶) + 6) + v (((−x₁ − 7)² + (−x₂ − 8)²/10)/10 − 20)

    Source: Liu et al. 2021, "Conflict-Averse Gradient Descent for Multi-task Learning" (arXiv 2110.14048), section 5.1,
    and `toy.py` of the authors' code.

    Deviation: the paper prints −t + 2 in L₂ and the code has t + 2, as here. Only with t + 2 are the losses mirror
    images of each other, L₁(x₁, x₂) = L₂(−x₁, x₂), as in the paper's figures. With −t + 2, the valley of L₂ would
    contain the start (9, 9).
    """
    x, y = point.unbind(-1)
    above, below = (y / 2).tanh().clamp_min(0), (-y / 2).tanh().clamp_min(0)
    first = (0.5 * (-x - 7) - (-y).tanh()).abs().clamp_min(_FLOOR).log() + 6
    second = (0.5 * (-x + 3) + (-y).tanh() + 2).abs().clamp_min(_FLOOR).log() + 6
    bowls = [((-x + sign * 7).square() + 0.1 * (-y - 8).square()) / 10 - 20 for sign in (1, -1)]
    return torch.stack([first * above + bowls[0] * below, second * above + bowls[1] * below], dim=-1)


def pareto_front(count: int = 401) -> Tensor:
    """Return points `[count, 2]`, float64, where neither loss can decrease without an increase of the other.

    A weighted sum w L₁ + (1 − w) L₂ has its minimum at x₂ < 0, where its two bowls form one bowl with centre x₁ = 7s,
    s = 2w − 1. There the sum is v (4.9(1 − s²) + (x₂ + 8)²/100 − 20), and its derivative w.r.t. x₂ changes sign once
    between −12 and −4. (The paper draws the line x₂ = −8.3552 of s = 0 for all s; the ends of the front have lower x₂.)
    """
    share = torch.linspace(-1, 1, count, dtype=torch.float64)
    low, high = torch.full_like(share, -12.0), torch.full_like(share, -4.0)
    for _ in range(60):  # bisections of an interval of length 8, to less than the last bit of a float64
        middle = (low + high) / 2
        bowl = 4.9 * (1 - share.square()) + (middle + 8).square() / 100 - 20
        derivative = (-middle / 2).tanh() * (middle + 8) / 50 - bowl / 2 / (middle / 2).cosh().square()
        low, high = torch.where(derivative < 0, middle, low), torch.where(derivative < 0, high, middle)
    return torch.stack([7 * share, (low + high) / 2], dim=1)


def distance_from_front(points: Tensor, front: Tensor) -> Tensor:
    """Return the distance `[n]` of the losses of points `[n, 2]` from the losses of the front's points `[count, 2]`."""
    # Without matrix products: their rounding errors are as large as small distances.
    return torch.cdist(
        toy_losses(points.double()), toy_losses(front), compute_mode="donot_use_mm_for_euclid_dist"
    ).amin(dim=1)


TRAJECTORY_POINTS = 500
"""Approximate number of points of a long trajectory that are kept for its figure."""

TASKS = ("f1", "f2")

MIN_REACH, GRID = 11.0, 221
"""Minimum extent of the contours from 0, as in the authors' figure, and grid points of the contours per dimension."""

FROM_FRONT = "from the front"
NO_NETWORK = "its parameters are points in the plane with two losses"


class Landscape(Problem):
    """One point per start, each with separate homogenizers; Adam updates each coordinate independently.

    Args:
        starts: one to 26 starting points [x1, x2].
    """

    state_selection = "last"
    tasks = TASKS

    def __init__(self, run: ProblemRun, *, starts: Annotated[Sequence[Point], Len(1, 26)] = STARTS) -> None:
        # float64: trajectories must differ by their methods, not by rounding.
        self.points = nn.Parameter(torch.tensor(starts, dtype=torch.float64, device=run.device))
        self.network = nn.ParameterDict({"points": self.points})
        self.pipelines = [run.pipeline(no_network=NO_NETWORK) for _ in starts]
        self.names = string.ascii_lowercase[: len(starts)]
        self.keep_every = max(1, run.steps // TRAJECTORY_POINTS)
        self.path = self._positions()[None]
        described = ", ".join(
            f"{name} from ({', '.join(f'{x:g}' for x in start)})"
            for name, start in zip(self.names, starts, strict=True)
        )
        self.notes = [
            f"Losses after the last step; {described}. {FROM_FRONT.capitalize()}: the distance of a pair of losses "
            "from the nearest pair on the Pareto front, mean over the starts.",
            "Nothing is random: every run of a method gives the same result. Tuned methods are tuned on the mean "
            "of these losses.",
        ]

    def losses(self, index: int) -> dict[str, Tensor]:
        """Return the sum of each loss over the points, which are independent; every batch is the same."""
        return dict(zip(TASKS, toy_losses(self.points).sum(0), strict=True))

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        """Take one step with every point; the report contains means over the points."""
        losses = toy_losses(self.points)
        # Points are independent, so that one backward pass per loss gives the rows of all points.
        gradients = [torch.autograd.grad(loss.sum(), self.points, retain_graph=True)[0] for loss in losses.unbind(1)]
        rows = {"points": torch.stack(gradients)}
        given, points = self.step_metric(optimizer), {"points": self.points}
        metric = None if given is None else OptimizerMetric.of_step(given, points, self.pipelines[0], inspect)
        rows = rows if metric is None else metric.scale(rows)
        steps = [
            pipe.homogenize(jacobian, values, domains=TASKS, inspect=inspect)
            for pipe, jacobian, values in zip(self.pipelines, rows["points"].unbind(1), losses.detach(), strict=True)
        ]
        optimizer.zero_grad()
        direction = {"points": torch.stack([step.direction[""] for step in steps])}
        self.points.grad = (direction if metric is None else metric.unscale(direction))["points"]
        optimizer.step()
        if (index + 1) % self.keep_every == 0:
            self.path = torch.cat([self.path, self._positions()[None]])
        names = ("losses", "norms", "cosines", "weights")
        means, norms, cosines, weights = (_mean([getattr(step, name) for step in steps]) for name in names)
        gramian = None
        if norms is not None and cosines is not None:  # with the mean norms and the mean cosines
            gramian = torch.outer(norms, norms) * cosines.fill_diagonal_(1.0)
        return StepReport({}, steps[0].keys, means, weights, gramian)

    def _positions(self) -> Tensor:
        """Return the current points, `[starts, 2]`."""
        return self.points.detach().cpu().clone()

    # -- evaluation --------------------------------------------------------------------------------------------------

    def validate(self) -> Evaluation:
        """Return both losses of each start; there are no held-out data."""
        values = toy_losses(self._positions())
        names = [f"{name}: {loss}" for name in self.names for loss in TASKS]
        return Evaluation(values.flatten().tolist(), values.flatten().tolist(), names, self.metric)

    def write_artifacts(self, folder: Path) -> dict[str, Any]:
        front = pareto_front()
        reach = max(MIN_REACH, 1.05 * float(self.path.abs().max()))
        axis = torch.linspace(-reach, reach, GRID, dtype=torch.float64)
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1)
        surface = toy_losses(grid).mean(-1)
        arrays: dict[str, Any] = {"path": self.path, "axis": axis, "surface": surface, "front": front}
        np.savez_compressed(folder / "trajectory.npz", **arrays)
        return {"additional_scores": {FROM_FRONT: float(distance_from_front(self._positions(), front).mean())}}

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"held_out": False}

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        homogenizers = [pipe.state_dict() for pipe in self.pipelines]
        return {"points": self._positions(), "path": self.path, "homogenizers": homogenizers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            self.points.copy_(state["points"])
        self.path = state["path"]
        for pipe, saved in zip(self.pipelines, state["homogenizers"], strict=True):
            pipe.load_state_dict(saved)


def _mean(values: Sequence[Tensor | None]) -> Tensor | None:
    present = [value for value in values if value is not None]
    return torch.stack(present).double().mean(0) if len(present) == len(values) else None
