"""A network of several supervised tasks, as a run trains and tests it: a shared encoder, and a head for each task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gradhomog
from gradhomog.experiments import models
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.problems.data import Data, Part, batch_indices, r_squared
from gradhomog.experiments.results.plan import SINGLE, Run
from gradhomog.experiments.training.trainable import device
from gradhomog.host.member import Member
from gradhomog.pipelines import pipeline
from gradhomog.reports import Evaluation, StageReport, StepReport
from gradhomog.scoring import accuracy, default_loss


class MultiTask:
    """A shared encoder with a linear head for each task, trained on the mean of the tasks' losses.

    The encoder's gradient is homogenized; a head has the gradient of its own loss. Where the run is that of the method
    "single-task", every task has an encoder of its own, and nothing is shared or homogenized: what a task reaches
    alone.

    Every method starts from the same encoder and heads (so does each task alone), and sees the same batches.
    """

    sampled = False
    keeps = "best"

    def __init__(self, config: Config, run: Run, data: Data, batch: int) -> None:
        self.data, self.metric, self.batch, self.seed = data, data.metric, batch, run.seed
        self.device = device(config.device)
        self.single = run.homogenizers == SINGLE
        self.homogenizers = pipeline(None if self.single else run.homogenizers, nonfinite=config.train.nonfinite)
        shape, network = tuple(data.train.inputs.shape[1:]), config.network
        torch.manual_seed(run.seed)
        made = [models.build(network.name, shape, outputs, network.width) for outputs in data.outputs]
        self.encoders = nn.ModuleList(encoder for encoder, _ in (made if self.single else made[:1]))
        self.heads = nn.ModuleList(head for _, head in made)
        self.network = nn.ModuleDict({"encoders": self.encoders, "heads": self.heads}).to(self.device)

    @property
    def members(self) -> Sequence[Member]:
        return self.homogenizers.members

    def parameters(self) -> list[nn.Parameter]:
        return list(self.network.parameters())

    def step(self, index: int, outer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        inputs, targets = self._batch(index)
        self.network.train()
        outer.zero_grad()
        if self.single:
            outputs = self._outputs(inputs)
            losses = self._losses(outputs, targets)
            report = self._alone(losses)
        else:
            with self.homogenizers.attached(self.encoders[0]):
                features = self.encoders[0](inputs)
            views = gradhomog.task_features(features, self.homogenizers, len(targets), self.data.tasks)
            outputs = [head(view) for head, view in zip(self.heads, views, strict=True)]
            losses = self._losses(outputs, targets)
            report = self._together(losses, views, torch.stack(targets), inspect)
        outer.step()
        scores = [accuracy(found, wanted) for found, wanted in zip(outputs, targets, strict=True)]
        if None not in scores:
            report.accuracies = torch.tensor(scores, dtype=torch.float64)
        return report

    def _losses(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor]:
        return [default_loss(found, wanted) for found, wanted in zip(outputs, targets, strict=True)]

    def _together(
        self, losses: Sequence[Tensor], views: gradhomog.TaskFeatures, targets: Tensor, inspect: bool
    ) -> StepReport:
        found = gradhomog.backward(
            losses, self.homogenizers, parameters=self.encoders[0], features=views, domains=self.data.tasks,
            targets=targets, inspect=inspect,
        )  # fmt: skip
        return StepReport.of(_values(losses), found, self.data.tasks)

    def _alone(self, losses: Sequence[Tensor]) -> StepReport:
        torch.autograd.backward(losses)
        norms = [
            torch.stack([p.grad.norm() for p in encoder.parameters() if p.grad is not None]).norm()
            for encoder in self.encoders
        ]
        cosines = torch.full((len(losses),) * 2, torch.nan, dtype=torch.float64)  # of different parameters
        everyone = tuple(range(len(losses)))
        return StepReport(
            _values(losses), None, _values(norms), cosines.fill_diagonal_(1.0), None, everyone, self.data.tasks
        )

    def _batch(self, index: int) -> Part:
        chosen = batch_indices(len(self.data.train.inputs), self.batch, self.seed, index)
        return Part(
            self.data.train.inputs[chosen].to(self.device),
            tuple(targets[chosen].to(self.device) for targets in self.data.train.targets),
        )

    def _outputs(self, inputs: Tensor) -> list[Tensor]:
        """The outputs of each task's head, every homogenizer removed."""
        features = [encoder(inputs) for encoder in self.encoders]
        shown = features if self.single else features * len(self.heads)
        return [head(seen) for head, seen in zip(self.heads, shown, strict=True)]

    def probe(self, index: int) -> list[StageReport]:
        return []

    # -- judging -----------------------------------------------------------------------------------------------------

    def validate(self) -> Evaluation:
        return self._evaluate(self.data.validation)

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        return self._evaluate(self.data.test)

    @torch.no_grad()
    def _evaluate(self, part: Part) -> Evaluation:
        """One score and one loss for each task."""
        self.network.eval()
        # In pieces, so that memory does not grow with the data.
        pieces = [self._outputs(inputs.to(self.device)) for inputs in torch.split(part.inputs, 256)]
        outputs = [torch.cat(found).cpu() for found in zip(*pieces, strict=True)]
        result = Evaluation(metric=self.metric.name)
        for name, found, wanted in zip(self.data.tasks, outputs, part.targets, strict=True):
            score = accuracy(found, wanted)
            result.scores.append(r_squared(found, wanted) if score is None else score)
            result.losses.append(float(default_loss(found, wanted)))
            result.domains.append(name)
        return result

    def leave(self, folder: Path) -> dict[str, Any]:
        return {}

    def about(self) -> dict[str, Any]:
        return {"tasks": list(self.data.tasks), "notes": list(self.data.notes), "fingerprint": self.data.fingerprint}

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"network": self.network.state_dict(), "homogenizers": self.homogenizers.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.homogenizers.load_state_dict(state["homogenizers"])


def trained_on(data: Callable[[Any, int], Data]) -> Callable[[Config, Run], MultiTask]:
    """What a problem trains whose data are made of its options, which have a `batch`, and of `network.size`."""

    def trainable(config: Config, run: Run) -> MultiTask:
        options: Any = config.problem
        return MultiTask(config, run, data(options, config.network.size), options.batch)

    return trainable


def _values(scalars: Sequence[Tensor]) -> Tensor:
    return torch.stack([scalar.detach().double() for scalar in scalars])
