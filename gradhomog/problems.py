"""The contract of multi-task problems: the data of several tasks, or their losses, which `gradhomog compare` trains on.

A problem is a plugin of the group `gradhomog.problems`. Its factory returns `MultiTaskData`, for which gradhomog trains
a network with a shared encoder and one head per task, or a `Problem`, which computes its losses itself. To write one:
`gradhomog new NAME --kind problem`.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradhomog.autograd.backward import backward
from gradhomog.diagnosis.diagnosis import loss_rows
from gradhomog.errors import ConfigError, DataError
from gradhomog.learners.learner_rows import FIRST_BATCH
from gradhomog.learners.results import Evaluation
from gradhomog.learners.training_mode import unchanged_buffers
from gradhomog.step.nonfinite import Nonfinite
from gradhomog.step.pipelines import Pipeline, pipeline
from gradhomog.step.reports import StageReport, StepReport


@dataclass(frozen=True)
class ProblemRun:
    """The settings of a run file that a problem may use: the first argument of its factory.

    Attributes:
        problem: the name of the problem.
        homogenizers: the text of the pipeline.
        nonfinite: the policy of the pipeline.
        seed: the seed of the run.
        steps: number of training steps.
        device: the device of the run.
        width, size: `network.width` and `network.size`.
    """

    problem: str
    homogenizers: str
    nonfinite: Nonfinite
    seed: int
    steps: int
    device: torch.device
    width: int
    size: int

    def pipeline(self, *, no_network: str = "") -> Pipeline:
        """Return a new pipeline of the run's homogenizers.

        Args:
            no_network: for a problem without a network, or whose methods have no access to it: the reason, for the
                message.

        Raises:
            ConfigError: there is `no_network`, and a homogenizer acts within one or reads its features.
        """
        made = pipeline(self.homogenizers, nonfinite=self.nonfinite)
        for member in made.members if no_network else ():
            within = member.before_rows or member.homogenizer.overrides("begin")
            if within or (member.declares_needs and "features" in member.needs):
                raise ConfigError(
                    f"{member} {'acts within' if within else 'reads features of'} a network, which the problem "
                    f"`{self.problem}` does not offer: {no_network}. Remove it, or choose another problem."
                )
        return made


class Examples(NamedTuple):
    """The examples of one split: training, validation or test.

    Attributes:
        inputs: float32 `[n, *input]`.
        targets: one tensor for each task: int64 classes `[n]`, or float32 `[n, outputs]`.
    """

    inputs: Tensor
    targets: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class MultiTaskData:
    """Shared inputs and one target per task, for training, validation and test.

    Attributes:
        tasks: names of the tasks.
        outputs: number of outputs of each task's head: its number of classes, or 1.
        batch: examples per step.
        train, validation, test: the three splits; no example is in two of them.
        notes: sentences for the report that describe the data.

    Raises:
        DataError: tasks, outputs, inputs and targets do not fit together; names the split and the task.
    """

    tasks: tuple[str, ...]
    outputs: tuple[int, ...]
    batch: int
    train: Examples
    validation: Examples
    test: Examples
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(set(self.tasks)) == len(self.tasks) == len(self.outputs) > 0 or self.batch < 1:
            raise DataError(
                "`tasks` must be different names, with one entry of `outputs` for each, and `batch` at least 1; got "
                f"{self.tasks}, {self.outputs} and {self.batch}."
            )
        each = list(self.train.inputs.shape[1:])
        for name, split in (("train", self.train), ("validation", self.validation), ("test", self.test)):
            count, *shape = split.inputs.shape
            if len(split.targets) != len(self.tasks) or not count or shape != each:
                raise DataError(
                    f"`{name}` must have inputs [n, *{each}] as `train`, n at least 1, and targets of "
                    f"{len(self.tasks)} tasks; got {[count, *shape]} and targets of {len(split.targets)}."
                )
            for task, outputs, target in zip(self.tasks, self.outputs, split.targets, strict=True):
                self._check_target(f"`{name}`, task {task!r}", outputs, target, count)

    def _check_target(self, where: str, outputs: int, target: Tensor, count: int) -> None:
        found = target.dtype, [*target.shape]
        if self.metric == "r2":
            expected, fits = f"float32 {[count, outputs]}", found == (torch.float32, [count, outputs])
        else:
            expected, fits = f"int64 classes {[count]} in 0..{outputs - 1}", found == (torch.int64, [count])
            fits = fits and bool(((target >= 0) & (target < outputs)).all())
        if not fits:
            values = f", {target.min():g} to {target.max():g}" if target.numel() else ""
            raise DataError(f"{where}: targets must be {expected}; got {found[0]} {found[1]}{values}.")

    @property
    def metric(self) -> str:
        """The metric of the scores: accuracy for classes, else R² with a mean squared error as the loss."""
        return "r2" if self.train.targets[0].is_floating_point() else "accuracy"

    @property
    def fingerprint(self) -> str:
        """Short hash of all inputs and targets, so that a comparison does not continue results of other data."""
        digest = hashlib.sha256()
        for split in (self.train, self.validation, self.test):
            for tensor in (split.inputs, *split.targets):
                digest.update(f"{tensor.dtype} {[*tensor.shape]}".encode() + tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:12]


class BatchRows(NamedTuple):
    """The rows of one batch, for a diagnosis.

    Attributes:
        rows: gradients w.r.t. the shared parameters, `[tasks, *shape]` by parameter, without homogenizers.
        names: the task of each row, or the domain from which its task is sampled.
        examples: number of examples of a task in the batch; None for sampled tasks.
    """

    rows: Mapping[str, Tensor]
    names: Sequence[str]
    examples: int | None = None


class Problem(ABC):
    """Several losses of one network, by default with all parameters shared; a subclass computes them.

    A step is a function of its index and the state only, so that a resumed run equals an uninterrupted one.

    Attributes:
        tasks: names of the tasks.
        network: the network; the optimizer changes its parameters.
        homogenizers: the pipeline, from `ProblemRun.pipeline`.
        metric: metric of the scores: "accuracy", "f1", "mse", "r2", "loss", "relative_l2", or "error" for another error
            of which lower is better and ratios are meaningful.
        state_selection: `"best"` tests the state with the best validation score, `"last"` the last state.
        in_optimizer_metric: True if the run file sets `train.metric = "optimizer"`; a subclass that overrides `step`
            passes `metric=self.step_metric(optimizer)` to `gradhomog.backward`.
        notes: sentences for the report that describe the problem.
    """

    samples_tasks: bool = False
    """The tasks are not a sample of a larger population: their scores have no confidence interval."""

    tasks: Sequence[str]
    network: nn.Module
    homogenizers: Pipeline
    metric: str = "loss"
    state_selection: str = "best"
    in_optimizer_metric: bool = False
    notes: Sequence[str] = ()

    @abstractmethod
    def losses(self, index: int) -> Mapping[str, Tensor]:
        """Return the loss of each task on batch `index`, differentiable w.r.t. the network."""

    @abstractmethod
    def validate(self) -> Evaluation:
        """Return the scores that select the state and the candidate of a tuned method."""

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the optimizer changes."""
        return list(self.network.parameters())

    @property
    def shared_part(self) -> nn.Module | Mapping[str, Tensor]:
        """The part of the network, or parameters by name, whose gradients are homogenized; by default all of it."""
        return self.network

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        """Train on batch `index`. Without `inspect`, norms and cosines that need extra computation may be NaN."""
        losses = self.losses(index)
        optimizer.zero_grad()
        report = backward(
            losses, self.homogenizers, parameters=self.shared_part, inspect=inspect, metric=self.step_metric(optimizer)
        )
        optimizer.step()
        return report

    def step_metric(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
        """Return the `metric` of `gradhomog.backward` in this run."""
        return optimizer if self.in_optimizer_metric else None

    def probe(self, index: int) -> list[StageReport]:
        """Return no rows: those after each homogenizer are in the reports of the steps."""
        return []

    def rows(self, index: int) -> BatchRows:
        """Return the rows of measured batch `index` at the present parameters, without changing the network."""
        with unchanged_buffers(self.network):
            rows, _ = loss_rows(self.losses(FIRST_BATCH + index), self.shared_part)
        return BatchRows(rows, self.tasks)

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        """Return the test scores of the loaded state, the only one of `states`; by default the validation scores."""
        return self.validate()

    def write_artifacts(self, folder: Path) -> dict[str, Any]:
        """Write files for figures, and return further entries for the record of the result. Called last.

        `additional_scores` are columns of the table, numbers by name. If they include all metrics of the tasks, and the
        scores are losses, `additional_metrics` has the metric of each by name, as in `metric`: Δm and mean ranks are
        then computed from them, and each is printed in its unit.
        """
        return {}

    def metadata(self) -> dict[str, Any]:
        """Return entries for the report."""
        return {"tasks": list(self.tasks), "notes": list(self.notes)}

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, from which training continues exactly."""
        return {"network": self.network.state_dict(), "homogenizers": self.homogenizers.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self.homogenizers.load_state_dict(state["homogenizers"])
