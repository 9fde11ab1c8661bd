"""The trainable of physics-informed problems: one network, and one loss per part of a differential equation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import gradhomog
from gradhomog.diagnosis.learner_rows import FIRST_BATCH
from gradhomog.diagnosis.loss_rows import loss_rows
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.data.seeding import generator
from gradhomog.experiments.problems.pinn.equation import Equation, PinnOptions
from gradhomog.experiments.problems.pinn.lowest_loss import LowestLoss
from gradhomog.experiments.problems.pinn.network import TanhNetwork
from gradhomog.experiments.problems.pinn.points import make_grid
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.training.trainable import BatchRows, device
from gradhomog.learners.results import Evaluation
from gradhomog.step.member import Member
from gradhomog.step.pipelines import pipeline
from gradhomog.step.reports import StageReport, StepReport

VALIDATION_GRID = 64
"""Validation points per coordinate, at least: centres of cells, so that they are not test points."""


class Pinn:
    """A network that is trained on the residuals of a differential equation and its conditions.

    All parameters are shared by all tasks, and `gradhomog.backward` homogenizes their gradients. The points of a step
    are a function of the seed and its index. Training does not use the solution; scores are errors of the network on a
    grid.
    """

    samples_tasks = False

    def __init__(self, config: Config, run: Run, equation: Equation) -> None:
        options = config.problem
        assert isinstance(options, PinnOptions)
        self.equation, self.options, self.seed = equation, options, run.seed
        self.metric = metric(options.error)
        self.state_selection = "best" if options.state == "lowest_error" else "last"
        self.device = device(config.device)
        self.homogenizers = pipeline(run.homogenizers, nonfinite=config.train.nonfinite)
        self.network = TanhNetwork(
            equation.lower, equation.upper, config.network.width, options.depth, standardize=equation.standardize,
            generator=torch.Generator().manual_seed(run.seed),
        ).to(self.device)  # fmt: skip
        self.tasks = equation.tasks(options)
        self.lowest = LowestLoss(self.network, self.tasks)

    @property
    def members(self) -> Sequence[Member]:
        return self.homogenizers.members

    def parameters(self) -> list[nn.Parameter]:
        return list(self.network.parameters())

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        points, tasks = self.points(index), self.homogenizers.choose(self.tasks)
        residuals = {task: self.equation.residual(task, self.network, points) for task in tasks}
        losses = {task: residual.square().mean() for task, residual in residuals.items()}
        if self.options.state == "lowest_loss":
            self.lowest.update({task: float(loss.detach()) for task, loss in losses.items()}, index)
        optimizer.zero_grad()
        report = gradhomog.backward(
            {task: losses.get(task) for task in self.tasks}, self.homogenizers, parameters=self.network,
            residuals={task: residuals.get(task) for task in self.tasks}, inspect=inspect,
        )  # fmt: skip
        optimizer.step()
        return report

    def rows(self, index: int) -> BatchRows:
        points = self.points(FIRST_BATCH + index)
        losses = {task: self.equation.residual(task, self.network, points).square().mean() for task in self.tasks}
        rows, _ = loss_rows(losses, self.network)
        return BatchRows(rows, self.tasks)

    def points(self, index: int) -> dict[str, Tensor]:
        """Return the points of step `index` by name, `[points, inputs]`."""
        random = generator(self.seed, index, 1)  # 1, because trailing zeros do not change a seed
        drawn = self.equation.draw(self.options, random)
        return {name: torch.from_numpy(values.astype(np.float32)).to(self.device) for name, values in drawn.items()}

    def probe(self, index: int) -> list[StageReport]:
        return []

    # -- evaluation --------------------------------------------------------------------------------------------------

    def validate(self) -> Evaluation:
        """Return the error on centres of cells of a grid."""
        counts = [max(VALIDATION_GRID, count // 2) + 1 for count in self.equation.grid]
        return self._evaluate(make_grid(self.equation.lower, self.equation.upper, counts, cells=True))

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        """Return the error on the grid of the paper."""
        return self._evaluate(make_grid(self.equation.lower, self.equation.upper, self.equation.grid))

    @torch.no_grad()
    def _evaluate(self, points: NDArray[np.float64]) -> Evaluation:
        network = self.lowest.network if self.options.state == "lowest_loss" else self.network
        inputs = torch.from_numpy(points.astype(np.float32)).to(self.device)
        # In chunks: memory must not grow with the grid.
        values = torch.cat([network(chunk)[0] for chunk in torch.split(inputs, 4096)]).double().cpu().numpy()
        expected = self.equation.solution(points)
        squared = float(np.square(values - expected).sum())
        reference = float(np.square(expected).sum()) if self.options.error == "relative_l2" else len(points)
        error = math.sqrt(squared / reference) if self.options.error == "relative_l2" else squared / reference
        return Evaluation([error], [squared / len(points)], ["u"], self.metric.name)

    def write_artifacts(self, folder: Path) -> dict[str, Any]:
        """Return the step of the tested state, if that is not the one in `best.pt`'s entry `network`."""
        return {"lowest_loss_step": self.lowest.step} if self.options.state == "lowest_loss" else {}

    def metadata(self) -> dict[str, Any]:
        counts = {name: len(values) for name, values in self.points(0).items()}
        drawn = ", ".join(f"{count} {name}" for name, count in counts.items())
        tested = {
            "lowest_loss": "the state with the lowest sum of the losses of a batch",
            "last": "the last state",
            "lowest_error": "the state with the lowest validation error",
        }[self.options.state]
        return {
            "tasks": list(self.tasks),
            "notes": [
                f"Points of a step: {drawn}. Tested: {tested}, on a grid of "
                f"{' × '.join(map(str, self.equation.grid))} points. Candidates of tuned methods are chosen by the "
                "error at other points; training does not use the solution.",
            ],
        }

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": self.network.state_dict(),
            "lowest": self.lowest.state_dict(),
            "homogenizers": self.homogenizers.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.lowest.load_state_dict(state["lowest"])
        self.homogenizers.load_state_dict(state["homogenizers"])
