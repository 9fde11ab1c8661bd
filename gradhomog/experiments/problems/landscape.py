"""The two-dimensional toy landscape of CAGrad: Adam minimizes two losses of a point from the starts of the paper."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradhomog.errors import ConfigError
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.config.suites import suite_pipelines
from gradhomog.experiments.problems import toy
from gradhomog.experiments.problems.spec import EPISODIC, ProblemSpec
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.results.trajectory import Trajectory
from gradhomog.experiments.training.trainable import BatchRows, device
from gradhomog.learners.results import Evaluation
from gradhomog.step.member import Member
from gradhomog.step.pipelines import pipeline
from gradhomog.step.reports import StageReport, StepReport

TRAJECTORY_POINTS = 500
"""Approximate number of points of a long trajectory that are kept for its figure."""

TASKS = ("f1", "f2")

MIN_REACH, GRID = 11.0, 221
"""Minimum extent of the contours from 0, as in the authors' figure, and grid points of the contours per dimension."""

FROM_FRONT = "from the front"


@dataclass(frozen=True)
class LandscapeOptions:
    """Options of `landscape`: the starting points."""

    name: Literal["landscape"] = "landscape"
    starts: list[list[float]] = field(default_factory=lambda: [list(start) for start in toy.STARTS])


class Landscape:
    """One point per start, each with separate homogenizers; Adam updates each coordinate independently."""

    samples_tasks = False
    state_selection = "last"

    def __init__(self, config: Config, run: Run) -> None:
        options = config.problem
        assert isinstance(options, LandscapeOptions)
        _check(config, options)
        self.metric = metric("loss")
        # float64: trajectories must differ by their methods, not by rounding.
        self.points = nn.Parameter(torch.tensor(options.starts, dtype=torch.float64, device=device(config.device)))
        self.pipelines = [pipeline(run.homogenizers, nonfinite=config.train.nonfinite) for _ in options.starts]
        _check_members(self.pipelines[0].members)
        self.names = string.ascii_lowercase[: len(options.starts)]
        self.starts = options.starts
        self.keep_every = max(1, config.train.steps // TRAJECTORY_POINTS)
        self.path = self._positions()[None]

    @property
    def members(self) -> Sequence[Member]:
        return [member for pipe in self.pipelines for member in pipe.members]

    def parameters(self) -> list[nn.Parameter]:
        return [self.points]

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        """Take one step with every point; the report contains means over the points."""
        losses, rows = self._losses_and_rows()
        steps = [
            pipe.homogenize(jacobian, values, domains=TASKS, inspect=inspect)
            for pipe, jacobian, values in zip(self.pipelines, rows, losses.detach(), strict=True)
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

    def _losses_and_rows(self) -> tuple[Tensor, Tensor]:
        """Return the losses `[starts, tasks]` and their gradients `[starts, tasks, 2]`."""
        losses = toy.losses(self.points)
        # Points are independent, so that one backward pass per loss gives the rows of all points.
        gradients = [torch.autograd.grad(loss.sum(), self.points, retain_graph=True)[0] for loss in losses.unbind(1)]
        return losses, torch.stack(gradients, dim=1)

    def _positions(self) -> Tensor:
        """Return the current points, `[starts, 2]`."""
        return self.points.detach().cpu().clone()

    def probe(self, index: int) -> list[StageReport]:
        return []

    def rows(self, index: int) -> BatchRows:
        """Return the rows w.r.t. the coordinates of all points; every batch is the same, as nothing is random."""
        _, rows = self._losses_and_rows()
        return BatchRows({"points": rows.transpose(0, 1)}, TASKS)

    # -- evaluation --------------------------------------------------------------------------------------------------

    def validate(self) -> Evaluation:
        """Return both losses of each start; there are no held-out data."""
        values = toy.losses(self._positions())
        names = [f"{name}: {loss}" for name in self.names for loss in TASKS]
        return Evaluation(values.flatten().tolist(), values.flatten().tolist(), names, self.metric.name)

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        return self.validate()

    def write_artifacts(self, folder: Path) -> dict[str, Any]:
        front = toy.pareto_front()
        reach = max(MIN_REACH, 1.05 * float(self.path.abs().max()))
        axis = torch.linspace(-reach, reach, GRID, dtype=torch.float64)
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=-1)
        surface = toy.losses(grid).mean(-1)
        Trajectory(self.path.numpy(), axis.numpy(), surface.numpy(), front.numpy()).write(folder)
        return {"additional_scores": {FROM_FRONT: float(toy.distance_from_front(self._positions(), front).mean())}}

    def metadata(self) -> dict[str, Any]:
        starts = ", ".join(
            f"{name} from ({', '.join(f'{x:g}' for x in start)})"
            for name, start in zip(self.names, self.starts, strict=True)
        )
        return {
            "tasks": list(TASKS),
            "held_out": False,
            "notes": [
                f"Losses after the last step; {starts}. {FROM_FRONT.capitalize()}: the distance of a pair of losses "
                "from the nearest pair on the Pareto front, mean over the starts.",
                "Nothing is random: every run of a method gives the same result. Tuned methods are tuned on the mean "
                "of these losses.",
            ],
        }

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


def _check_members(members: Sequence[Member]) -> None:
    """Raise `ConfigError` for homogenizers that act within a network or read its features; there is none."""
    for member in members:
        within = member.before_rows or member.homogenizer.overrides("begin")
        if within or (member.declares_needs and "features" in member.needs):
            raise ConfigError(
                f"{member} requires {'a network' if within else 'the features of a network'}, but the problem "
                "`landscape` has none: its parameters are points in the plane with two losses. Remove this "
                "homogenizer, or choose a problem with a network."
            )


def _check(config: Config, options: LandscapeOptions) -> None:
    if len(config.seed_list) > 1:
        raise ConfigError(
            f"`seeds` must be one seed: nothing in the problem is random, so all seeds give the same result; "
            f"got {config.seed_list}."
        )
    if not 1 <= len(options.starts) <= len(string.ascii_lowercase):
        raise ConfigError(f"`problem.starts` must hold 1 to 26 points; got {len(options.starts)}.")
    for start in options.starts:
        if len(start) != 2:
            raise ConfigError(f"`problem.starts` must hold points [x1, x2]; got {start}.")


PROBLEM = ProblemSpec(
    name="landscape",
    options=LandscapeOptions,
    trainable=Landscape,
    defaults={
        "homogenizers": suite_pipelines("landscape"),
        "seeds": 1,
        # A tenth of the paper's 100,000 steps at five times its rate: half a minute per method, and the same figure.
        "train": {"steps": 10000, "outer_lr": 0.005, "validate_every": 100, "log_every": 50, "checkpoint_every": 2000},
    },
    unused_keys=(*EPISODIC, "network"),
    has_single_task=False,
)
