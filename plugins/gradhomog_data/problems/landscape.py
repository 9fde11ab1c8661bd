"""The two-dimensional toy landscape of CAGrad: Adam minimizes two losses of a point from the starts of the paper."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradhomog import ConfigError, Evaluation, Problem, ProblemRun, ProblemSpec, StepReport, hookimpl
from gradhomog_data.problems import _toy

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
        starts: the starting points.
    """

    state_selection = "last"
    tasks = TASKS

    def __init__(self, run: ProblemRun, *, starts: Sequence[Sequence[float]] = _toy.STARTS) -> None:
        _check(starts)
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

    @property
    def members(self) -> Sequence[Any]:
        return [member for pipe in self.pipelines for member in pipe.members]

    def losses(self, index: int) -> dict[str, Tensor]:
        """Return the sum of each loss over the points, which are independent; every batch is the same."""
        return dict(zip(TASKS, _toy.losses(self.points).sum(0), strict=True))

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        """Take one step with every point; the report contains means over the points."""
        losses = _toy.losses(self.points)
        # Points are independent, so that one backward pass per loss gives the rows of all points.
        gradients = [torch.autograd.grad(loss.sum(), self.points, retain_graph=True)[0] for loss in losses.unbind(1)]
        steps = [
            pipe.homogenize(jacobian, values, domains=TASKS, inspect=inspect)
            for pipe, jacobian, values in zip(
                self.pipelines, torch.stack(gradients, dim=1), losses.detach(), strict=True
            )
        ]
        optimizer.zero_grad()
        self.points.grad = torch.stack([step.direction[""] for step in steps])
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
        values = _toy.losses(self._positions())
        names = [f"{name}: {loss}" for name in self.names for loss in TASKS]
        return Evaluation(values.flatten().tolist(), values.flatten().tolist(), names, self.metric)

    def write_artifacts(self, folder: Path) -> dict[str, Any]:
        front = _toy.pareto_front()
        reach = max(MIN_REACH, 1.05 * float(self.path.abs().max()))
        axis = torch.linspace(-reach, reach, GRID, dtype=torch.float64)
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1)
        surface = _toy.losses(grid).mean(-1)
        arrays: dict[str, Any] = {"path": self.path, "axis": axis, "surface": surface, "front": front}
        np.savez_compressed(folder / "trajectory.npz", **arrays)
        return {"additional_scores": {FROM_FRONT: float(_toy.distance_from_front(self._positions(), front).mean())}}

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


def _check(starts: Sequence[Sequence[float]]) -> None:
    if not 1 <= len(starts) <= len(string.ascii_lowercase):
        raise ConfigError(f"`problem.starts` must hold 1 to 26 points; got {len(starts)}.")
    for start in starts:
        if len(start) != 2:
            raise ConfigError(f"`problem.starts` must hold points [x1, x2]; got {start}.")


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return ProblemSpec(
        factory=Landscape,
        summary="the two-dimensional toy landscape of CAGrad: two losses of a point, from the starts of the paper",
        reference="Liu, Liu, Jin, Stone, Liu 2021, arXiv:2110.14048, section 5.1",
        defaults={
            "homogenizers": "landscape",
            "seeds": 1,
            # A tenth of the paper's 100,000 steps at five times its rate: half a minute per method, the same figure.
            "train": {
                "steps": 10000, "outer_lr": 0.005, "validate_every": 100, "log_every": 50, "checkpoint_every": 2000,
            },
        },
        unused_keys=("network",),
        single_task=False,
        deterministic=True,
    )  # fmt: skip
