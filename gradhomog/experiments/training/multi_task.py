"""The trainable of multi-task runs: a shared encoder and one head per task."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import gradhomog
from gradhomog.diagnosis.diagnosis import loss_rows
from gradhomog.experiments.environment import device
from gradhomog.experiments.episodes.sampler import generator
from gradhomog.experiments.run_file import content
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.runs import SINGLE, Run
from gradhomog.learners.learner_rows import FIRST_BATCH
from gradhomog.learners.results import Evaluation
from gradhomog.learners.scoring import accuracy, default_loss
from gradhomog.learners.training_mode import training_mode, unchanged_buffers
from gradhomog.problems import BatchRows, Examples, MultiTaskData, Problem
from gradhomog.step.pipelines import pipeline
from gradhomog.step.reports import StepReport


class MultiTask(Problem):
    """A shared encoder with one linear head per task, trained on the mean of the tasks' losses.

    The gradient of the encoder is homogenized; each head receives the gradient of its task's loss. For the method
    "single-task", every task has a separate encoder, and nothing is shared or homogenized: the baseline of training
    each task alone.

    All methods, including "single-task", start from the same encoder and heads and train on the same batches.
    """

    def __init__(self, config: Config, run: Run, data: MultiTaskData) -> None:
        self.data, self.seed = data, run.seed
        self.tasks, self.metric, self.notes = data.tasks, data.metric, data.notes
        self.device = device(config.device)
        self.is_single_task = run.homogenizers == SINGLE
        self.homogenizers = pipeline(
            None if self.is_single_task else run.homogenizers, nonfinite=config.train.nonfinite
        )
        shape, chosen = tuple(data.train.inputs.shape[1:]), config.network
        torch.manual_seed(run.seed)
        networks = [content.build_network(chosen.name, shape, outputs, chosen.width) for outputs in data.outputs]
        self.encoders = nn.ModuleList(encoder for encoder, _ in (networks if self.is_single_task else networks[:1]))
        self.heads = nn.ModuleList(head for _, head in networks)
        self.network = nn.ModuleDict({"encoders": self.encoders, "heads": self.heads}).to(self.device)

    def losses(self, index: int) -> dict[str, Tensor]:
        inputs, targets = self._batch(index)
        return dict(zip(self.tasks, self._losses(self._outputs(inputs), targets), strict=True))

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        inputs, targets = self._batch(index)
        self.network.train()
        optimizer.zero_grad()
        if self.is_single_task:
            outputs = self._outputs(inputs)
            losses = dict(zip(self.tasks, self._losses(outputs, targets), strict=True))
            torch.autograd.backward(list(losses.values()))
            report = StepReport.of_separate_networks(losses, list(self.encoders))
        else:
            with self.homogenizers.attached(self.encoders[0]):
                features = self.encoders[0](inputs)
                views = gradhomog.task_features(features, self.homogenizers, len(targets), self.data.tasks)
                outputs = [head(view) for head, view in zip(self.heads, views, strict=True)]
                report = gradhomog.backward(
                    self._losses(outputs, targets), self.homogenizers, parameters=self.encoders[0], features=views,
                    domains=self.data.tasks, targets=torch.stack(targets), inspect=inspect,
                    metric=self.step_metric(optimizer),
                )  # fmt: skip
        optimizer.step()
        scores = [accuracy(output, target) for output, target in zip(outputs, targets, strict=True)]
        if None not in scores:
            report = replace(report, accuracies=torch.tensor(scores, dtype=torch.float64)[list(report.tasks)])
        return report

    def _losses(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor]:
        return [default_loss(output, target) for output, target in zip(outputs, targets, strict=True)]

    def _batch(self, index: int) -> Examples:
        indices = batch_indices(len(self.data.train.inputs), self.data.batch, self.seed, index)
        return Examples(
            self.data.train.inputs[indices].to(self.device),
            tuple(targets[indices].to(self.device) for targets in self.data.train.targets),
        )

    def _outputs(self, inputs: Tensor) -> list[Tensor]:
        """Return the outputs of each task's head, without homogenizers."""
        features = [encoder(inputs) for encoder in self.encoders]
        per_task = features if self.is_single_task else features * len(self.heads)
        return [head(task_features) for head, task_features in zip(self.heads, per_task, strict=True)]

    def rows(self, index: int) -> BatchRows:
        # The first batch of a separate epoch: batches of one epoch have no example in common, so they are dependent.
        per_epoch = max(len(self.data.train.inputs) // self.data.batch, 1)
        batch = (FIRST_BATCH + index) * per_epoch
        with training_mode([self.network], True), unchanged_buffers(self.network):
            rows, _ = loss_rows(self.losses(batch), self.encoders)
        return BatchRows(rows, self.tasks, min(self.data.batch, len(self.data.train.inputs)))

    # -- evaluation --------------------------------------------------------------------------------------------------

    def validate(self) -> Evaluation:
        return self._evaluate(self.data.validation)

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        return self._evaluate(self.data.test)

    @torch.no_grad()
    def _evaluate(self, split: Examples) -> Evaluation:
        """Return one score and one loss per task."""
        self.network.eval()
        # In chunks: memory must not grow with the data set.
        chunks = [self._outputs(inputs.to(self.device)) for inputs in torch.split(split.inputs, 256)]
        outputs = [torch.cat(chunk).cpu() for chunk in zip(*chunks, strict=True)]
        result = Evaluation(metric=self.metric)
        for name, output, target in zip(self.data.tasks, outputs, split.targets, strict=True):
            score = accuracy(output, target)
            result.scores.append(r_squared(output, target) if score is None else score)
            result.losses.append(float(default_loss(output, target)))
            result.domains.append(name)
        return result

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"fingerprints": {"problem": self.data.fingerprint}}


def r_squared(outputs: Tensor, targets: Tensor) -> float:
    """Return R² = 1 − Σ (y − f)² / Σ (y − ȳ)², with the mean ȳ of these targets: 1 is perfect, 0 as good as ȳ.

    The result is NaN if all targets are equal.
    """
    outputs, targets = outputs.double(), targets.double()
    spread = (targets - targets.mean()).square().sum()
    return float(1 - (targets - outputs).square().sum() / spread) if spread > 0 else float("nan")


def batch_indices(examples: int, size: int, seed: int, index: int) -> Tensor:
    """Return the indices of the examples of batch `index`.

    Every epoch is a new permutation, divided into batches of the same size. The last examples of an epoch are omitted
    if they do not fill a batch. If `size` is at least the number of examples, every batch contains all of them.
    """
    if size >= examples:
        return torch.arange(examples)
    epoch, position = divmod(index, examples // size)
    order = generator(seed, epoch).permutation(examples)
    return torch.from_numpy(order[position * size : (position + 1) * size])
