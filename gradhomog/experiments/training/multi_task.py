"""The trainable of multi-task runs: a shared encoder and one head per task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gradhomog
from gradhomog.diagnosis.learner_rows import FIRST_BATCH
from gradhomog.diagnosis.loss_rows import loss_rows
from gradhomog.experiments import models
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.problems.data import Data, SplitData, batch_indices, r_squared
from gradhomog.experiments.results.plan import SINGLE, Run
from gradhomog.experiments.training.trainable import BatchRows, device
from gradhomog.learners.results import Evaluation
from gradhomog.learners.scoring import accuracy, default_loss
from gradhomog.learners.training_mode import training_mode, unchanged_buffers
from gradhomog.step.member import Member
from gradhomog.step.pipelines import pipeline
from gradhomog.step.reports import StageReport, StepReport
from gradhomog.step.step import task_keys


class MultiTask:
    """A shared encoder with one linear head per task, trained on the mean of the tasks' losses.

    The gradient of the encoder is homogenized; each head receives the gradient of its task's loss. For the method
    "single-task", every task has a separate encoder, and nothing is shared or homogenized: the baseline of training
    each task alone.

    All methods, including "single-task", start from the same encoder and heads and train on the same batches.
    """

    samples_tasks = False
    state_selection = "best"

    def __init__(self, config: Config, run: Run, data: Data, batch: int) -> None:
        self.data, self.metric, self.batch, self.seed = data, data.metric, batch, run.seed
        self.device = device(config.device)
        self.is_single_task = run.homogenizers == SINGLE
        self.homogenizers = pipeline(
            None if self.is_single_task else run.homogenizers, nonfinite=config.train.nonfinite
        )
        shape, network = tuple(data.train.inputs.shape[1:]), config.network
        torch.manual_seed(run.seed)
        networks = [models.build(network.name, shape, outputs, network.width) for outputs in data.outputs]
        self.encoders = nn.ModuleList(encoder for encoder, _ in (networks if self.is_single_task else networks[:1]))
        self.heads = nn.ModuleList(head for _, head in networks)
        self.network = nn.ModuleDict({"encoders": self.encoders, "heads": self.heads}).to(self.device)

    @property
    def members(self) -> Sequence[Member]:
        return self.homogenizers.members

    def parameters(self) -> list[nn.Parameter]:
        return list(self.network.parameters())

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        inputs, targets = self._batch(index)
        self.network.train()
        optimizer.zero_grad()
        if self.is_single_task:
            outputs = self._outputs(inputs)
            report = self._single_task_report(self._losses(outputs, targets))
        else:
            with self.homogenizers.attached(self.encoders[0]):
                features = self.encoders[0](inputs)
                views = gradhomog.task_features(features, self.homogenizers, len(targets), self.data.tasks)
                outputs = [head(view) for head, view in zip(self.heads, views, strict=True)]
                report = gradhomog.backward(
                    self._losses(outputs, targets), self.homogenizers, parameters=self.encoders[0], features=views,
                    domains=self.data.tasks, targets=torch.stack(targets), inspect=inspect,
                )  # fmt: skip
        optimizer.step()
        scores = [accuracy(output, target) for output, target in zip(outputs, targets, strict=True)]
        if None not in scores:
            report = replace(report, accuracies=torch.tensor(scores, dtype=torch.float64)[list(report.tasks)])
        return report

    def _losses(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor]:
        return [default_loss(output, target) for output, target in zip(outputs, targets, strict=True)]

    def _single_task_report(self, losses: Sequence[Tensor]) -> StepReport:
        torch.autograd.backward(losses)
        norms = [
            torch.stack([p.grad.norm() for p in encoder.parameters() if p.grad is not None]).norm()
            for encoder in self.encoders
        ]
        gramian = torch.full((len(losses),) * 2, torch.nan, dtype=torch.float64)  # rows of different parameters
        gramian.diagonal().copy_(_detached(norms).square())
        return StepReport({}, task_keys(range(len(losses)), self.data.tasks), _detached(losses), gramian=gramian)

    def _batch(self, index: int) -> SplitData:
        indices = batch_indices(len(self.data.train.inputs), self.batch, self.seed, index)
        return SplitData(
            self.data.train.inputs[indices].to(self.device),
            tuple(targets[indices].to(self.device) for targets in self.data.train.targets),
        )

    def _outputs(self, inputs: Tensor) -> list[Tensor]:
        """Return the outputs of each task's head, without homogenizers."""
        features = [encoder(inputs) for encoder in self.encoders]
        per_task = features if self.is_single_task else features * len(self.heads)
        return [head(task_features) for head, task_features in zip(self.heads, per_task, strict=True)]

    def probe(self, index: int) -> list[StageReport]:
        return []

    def rows(self, index: int) -> BatchRows:
        # The first batch of a separate epoch: batches of one epoch have no example in common, so they are dependent.
        per_epoch = max(len(self.data.train.inputs) // self.batch, 1)
        inputs, targets = self._batch((FIRST_BATCH + index) * per_epoch)
        with training_mode([self.network], True), unchanged_buffers(self.network):
            rows, _ = loss_rows(self._losses(self._outputs(inputs), targets), self.encoders)
        return BatchRows(rows, self.data.tasks, len(inputs))

    # -- evaluation --------------------------------------------------------------------------------------------------

    def validate(self) -> Evaluation:
        return self._evaluate(self.data.validation)

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        return self._evaluate(self.data.test)

    @torch.no_grad()
    def _evaluate(self, split: SplitData) -> Evaluation:
        """Return one score and one loss per task."""
        self.network.eval()
        # In chunks: memory must not grow with the data set.
        chunks = [self._outputs(inputs.to(self.device)) for inputs in torch.split(split.inputs, 256)]
        outputs = [torch.cat(chunk).cpu() for chunk in zip(*chunks, strict=True)]
        result = Evaluation(metric=self.metric.name)
        for name, output, target in zip(self.data.tasks, outputs, split.targets, strict=True):
            score = accuracy(output, target)
            result.scores.append(r_squared(output, target) if score is None else score)
            result.losses.append(float(default_loss(output, target)))
            result.domains.append(name)
        return result

    def write_artifacts(self, folder: Path) -> dict[str, Any]:
        return {}

    def metadata(self) -> dict[str, Any]:
        fingerprints = {"problem": self.data.fingerprint}
        return {"tasks": list(self.data.tasks), "notes": list(self.data.notes), "fingerprints": fingerprints}

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"network": self.network.state_dict(), "homogenizers": self.homogenizers.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.homogenizers.load_state_dict(state["homogenizers"])


def multi_task_trainable(data: Callable[[Any, int], Data]) -> Callable[[Config, Run], MultiTask]:
    """Return a trainable factory, called as `(config, run)`, for a problem given by its data.

    Args:
        data: called with the options of the problem and `network.size`; the options have the batch size `batch`.
    """

    def trainable(config: Config, run: Run) -> MultiTask:
        options: Any = config.problem
        return MultiTask(config, run, data(options, config.network.size), options.batch)

    return trainable


def _detached(scalars: Sequence[Tensor]) -> Tensor:
    return torch.stack([scalar.detach().double() for scalar in scalars])
