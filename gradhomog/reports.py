"""Result classes of learners: task rows, step reports and evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradhomog.conflict import cosines
from gradhomog.homogenization import Homogenization


@dataclass
class TaskRow:
    """One task's row, with the loss, outputs and features that homogenizers and reports read.

    Attributes:
        loss: query loss of the adapted network, a detached scalar.
        gradients: one per parameter of `Learner.named_parameters`; None if the loss does not depend on it.
        outputs: outputs of the adapted network on the query set, detached.
        features: query features `[queries, features]` before and after each `transform` stage.
        feature_grads: gradient of the loss w.r.t. each of these.
    """

    loss: Tensor
    gradients: Mapping[str, Tensor | None]
    outputs: Tensor
    features: Sequence[Tensor] = ()
    feature_grads: Sequence[Tensor] = ()


@dataclass
class TaskRows:
    """The rows of a task batch.

    Attributes:
        jacobian: the rows by parameter name, `[tasks, *shape]`.
        losses: query losses, float64 `[tasks]`.
        accuracies: share of the query set that is classified correctly, float64 `[tasks]`; None for regression.
        features, feature_grads: before and after each `transform` stage, `[tasks, queries, features]`.
    """

    jacobian: dict[str, Tensor]
    losses: Tensor
    accuracies: Tensor | None
    features: Sequence[Tensor] = ()
    feature_grads: Sequence[Tensor] = ()


@dataclass
class StageReport:
    """Norms and cosines of the tasks' rows after one homogenizer.

    Attributes:
        name: name of the homogenizer; `"plain"` for the rows without homogenizers.
        norms: float64 `[tasks]`.
        cosines: float64 `[tasks, tasks]`.
    """

    name: str
    norms: Tensor
    cosines: Tensor

    @classmethod
    def of(cls, name: str, gramian: Tensor) -> StageReport:
        return cls(name, gramian.diagonal().clamp_min(0).sqrt(), cosines(gramian))

    def record(self) -> dict[str, Any]:
        """Return the report as plain lists, for JSON."""
        return {"name": self.name, "norms": self.norms.tolist(), "cosines": self.cosines.tolist()}


@dataclass
class StepReport:
    """Per-task measurements of one training step.

    Attributes:
        losses, accuracies: as in `TaskRows`.
        norms: Euclidean norms of the rows before homogenization, float64 `[tasks]`. Norms, cosines and weights are
            those of the tasks in the step.
        cosines: cosines between these rows, float64 `[tasks, tasks]`.
        weights: the weight of each row in the step (1 is the plain mean); None if a stage replaced the rows.
        tasks: indices of the tasks in the step.
        domains: one name per task.
        stages: the rows after each homogenizer that changes rows, in order.
        measured: further measurements by homogenizer and name, such as rotation angles and drop rates.
    """

    losses: Tensor
    accuracies: Tensor | None
    norms: Tensor
    cosines: Tensor
    weights: Tensor | None
    tasks: tuple[int, ...]
    domains: tuple[str, ...]
    stages: Sequence[StageReport] = ()
    measured: Mapping[str, Mapping[str, float | Sequence[float]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, losses: Tensor, found: Homogenization, domains: Sequence[str], accuracies: Tensor | None = None
    ) -> StepReport:
        """Create the report of a homogenized step; norms and cosines are NaN if the step did not compute them."""
        norms, angles = found.norms, found.cosines
        if norms is None or angles is None:
            angles = torch.full((len(found.tasks),) * 2, torch.nan, dtype=torch.float64)
            norms = angles[0]
        stages = [StageReport.of(stage.name, stage.gramian) for stage in found.stages]
        return cls(
            losses, accuracies, norms, angles, found.weights, found.tasks, tuple(domains), stages, found.measured
        )

    def record(self) -> dict[str, Any]:
        """Return the report as plain lists, for JSON."""
        values = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(self).items()}
        return {**values, "stages": [stage.record() for stage in self.stages]}


@dataclass
class Evaluation:
    """Scores of tasks at meta-test: accuracy for classification (higher is better), mean squared error for regression.

    Comparisons divide each mean squared error by `Domain.target_variance` if every domain has one.

    Attributes:
        scores: one per task.
        losses: one per task.
        domains: one name per task.
        metric: `"accuracy"`, `"mse"`, or `"nmse"` after that division.
    """

    scores: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    metric: str = "accuracy"

    @property
    def mean(self) -> float:
        return sum(self.scores) / len(self.scores)

    @property
    def half_width(self) -> float:
        """Half of the 95 % confidence interval of the mean over tasks: 1.96 s/√n with n − 1 in s; NaN for one task."""
        n = len(self.scores)
        if n < 2:
            return math.nan
        mean = self.mean
        return 1.96 * math.sqrt(sum((score - mean) ** 2 for score in self.scores) / (n - 1) / n)

    def __str__(self) -> str:
        return f"{self.metric} {self.mean:.4f} ± {self.half_width:.4f} over {len(self.scores)} tasks"
