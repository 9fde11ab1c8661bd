"""Base class of the field's benchmarks: a shared network with a head for each task, epochs of batches, and metrics."""

import copy
import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradhomog import Evaluation, Problem, ProblemRun, StepReport
from gradhomog_data._seeding import generator

SINGLE_TASK = "single-task"
"""The text of the method that trains one network for each task."""

Batch = Mapping[str, tuple[Any, Tensor]]
"""Inputs and targets `[n, ...]` of each task, on the device of the run. If tasks have the same object as inputs, the
shared part is computed once for them. Training batches have all tasks, chunks of a split one or more."""

Results = dict[str, dict[str, float]]
"""The `"loss"` of each task, and the scores of its meter by name."""

SplitName = Literal["validation", "test"]


class SharedNetwork(nn.Module):
    """A shared part, and a part for each task, which receives the output of the shared one.

    Args:
        shared: called with the inputs; returns features, a tensor or any other object.
        heads: one for each task, called with the features.
    """

    def __init__(self, shared: nn.Module, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.shared, self.heads = shared, nn.ModuleDict(heads)

    def output(self, task: str, features: Any) -> Any:
        """Return the outputs of a task. A subclass overrides it if the task-specific part applies shared layers."""
        return self.heads[task](features)


class Meter(Protocol):
    """Accumulates the metrics of one task over a split."""

    def update(self, outputs: Any, targets: Tensor) -> None:
        """Add the outputs for a batch."""

    def scores(self) -> Mapping[str, float]:
        """Return the metrics of everything added, by name."""


class Benchmark(Problem):
    """A `SharedNetwork`, trained on batches of epochs; the gradients of the shared part are homogenized.

    A part of a task receives the gradient of the task's loss. For the method "single-task", every task has a copy of
    the initial network with its own head only, and nothing is homogenized. Each epoch is a permutation of the training
    examples; the last ones are omitted if they do not fill a batch. Batches are a function of the seed of the run and
    of the step.

    If `validates_on` is "test", the protocol of papers without validation data is followed: the last state is tested,
    and its scores are means over the last `averaged_epochs` validations. Otherwise the state with the best validation
    score is tested; each network of the method "single-task" is tested in its own best state, whenever it improves.

    Attributes:
        named_metrics: the metric of each name that a `Meter` returns, such as `{"mIoU": "accuracy"}`; they are recorded
            as additional scores, and the scores of the tasks are losses. Empty if meters return one score for each
            task, by the name of the task, of the metric `metric`.
        fingerprint: a hash of the data, so that a comparison does not continue results of other data.

    Args:
        run: settings of the run.
        tasks: names of the tasks.
        network: returns the network, initialized from PyTorch's global generator.
        examples: number of training examples of a task, the largest if tasks have different numbers.
        batch: examples of each task per step.
        validates_on: the split of validation.
        averaged_epochs: number of validations, >= 1.
        notes: sentences for the report.

    Raises:
        ConfigError: a homogenizer acts within the network, or reads its features.
    """

    named_metrics: Mapping[str, str] = {}
    fingerprint: str

    def __init__(
        self,
        run: ProblemRun,
        tasks: Sequence[str],
        network: Callable[[], SharedNetwork],
        examples: int,
        batch: int,
        *notes: str,
        validates_on: SplitName = "validation",
        averaged_epochs: int = 1,
    ) -> None:
        self.seed, self.device, self.tasks, self.batch_size = run.seed, run.device, tuple(tasks), min(batch, examples)
        self.epoch_steps = examples // self.batch_size
        self.is_single_task = run.homogenizers == SINGLE_TASK
        shared = dataclasses.replace(run, homogenizers="none") if self.is_single_task else run
        self.homogenizers = shared.pipeline(no_network="methods act on its gradients only")
        torch.manual_seed(run.seed)  # also of dropout
        whole = network()
        self.networks = [_with_head(whole, task) for task in self.tasks] if self.is_single_task else [whole]
        self.network = nn.ModuleList(self.networks).to(run.device)
        self.validates_on, self.averaged_epochs = validates_on, averaged_epochs
        self.state_selection = "last" if validates_on == "test" or self.is_single_task else "best"
        self.recent: list[Results] = []  # of the last validations on the test data
        self.best: dict[str, tuple[float, dict[str, float]]] = {}  # of each network: validation score, test results
        self.notes = notes

    @abstractmethod
    def batch(self, index: int) -> Batch:
        """Return the training batch of step `index`, a function of the seed and the index."""

    @abstractmethod
    def chunks(self, split: SplitName) -> Iterator[Batch]:
        """Return all examples of a split, in batches that fit in memory."""

    @abstractmethod
    def loss(self, task: str, outputs: Any, targets: Tensor) -> Tensor:
        """Return the loss of a task, a mean over examples."""

    @abstractmethod
    def meters(self) -> Mapping[str, Meter]:
        """Return a new meter for each task."""

    def indices(self, index: int, examples: int, *words: int) -> NDArray[np.int64]:
        """Return the indices of the examples in the batch of step `index`; `words` distinguish tasks."""
        size = min(self.batch_size, examples)
        epoch, position = divmod(index, examples // size)
        order = generator(self.seed, epoch, *words, 1).permutation(examples)  # 1: trailing zeros do not change a seed
        return order[position * size : (position + 1) * size]

    # -- training ----------------------------------------------------------------------------------------------------

    @property
    def shared_part(self) -> nn.Module:
        return nn.ModuleList(network.shared for network in self.networks)

    def losses(self, index: int) -> dict[str, Tensor]:
        return self._losses(self.batch(index))

    def _losses(self, batch: Batch) -> dict[str, Tensor]:
        return {task: self.loss(task, outputs, batch[task][1]) for task, outputs in self.outputs(batch).items()}

    def outputs(self, batch: Batch) -> dict[str, Any]:
        """Return the outputs of each task; tasks with the same inputs, and the same network, share features."""
        features: dict[tuple[int, int], Any] = {}
        outputs = {}
        for number, task in enumerate(self.tasks):
            if task in batch:
                inputs, position = batch[task][0], number if self.is_single_task else 0
                network, key = self.networks[position], (position, id(inputs))
                if key not in features:
                    features[key] = network.shared(inputs)
                outputs[task] = network.output(task, features[key])
        return outputs

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        if not self.is_single_task:
            return super().step(index, optimizer, inspect)
        batch, losses = self.batch(index), dict[str, Tensor]()
        optimizer.zero_grad()
        for task in self.tasks:  # one after another, because the graphs of many networks fill the memory
            losses |= self._losses({task: batch[task]})
            torch.autograd.backward(losses[task])
        optimizer.step()
        return StepReport.of_separate_networks(losses, [network.shared for network in self.networks])

    def rows(self, index: int) -> Any:
        # Batches of one epoch have no example in common, so they are dependent: each measured one is of another epoch.
        return super().rows(index * self.epoch_steps)._replace(examples=self.batch_size)

    # -- evaluation --------------------------------------------------------------------------------------------------

    def validate(self) -> Evaluation:
        results = self.evaluate(self.validates_on)
        found = self._evaluation(results)
        if self.validates_on == "test":
            self.recent = [*self.recent, results][-self.averaged_epochs :]
        elif self.is_single_task:
            self._select(found.scores)
        return found

    def _select(self, scores: Sequence[float]) -> None:
        """Test the networks whose validation score is their best."""
        better = max if self.metric in ("accuracy", "f1") else min  # the other metrics are errors
        for (task, tested), score in zip(self.evaluate("test").items(), scores, strict=True):
            new = score, tested
            self.best[task] = better(self.best.get(task, new), new, key=itemgetter(0))

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        best = {task: results for task, (_, results) in self.best.items()}
        found = self.recent or [best or self.evaluate("test")]
        self.tested = {
            task: {name: fmean(results[task][name] for results in found) for name in found[0][task]}
            for task in self.tasks
        }
        return self._evaluation(self.tested)

    @torch.no_grad()
    def evaluate(self, split: SplitName) -> Results:
        """Return the mean `"loss"` over the examples of each task, and the scores of its meter by name."""
        self.network.eval()
        meters = self.meters()
        sums, counts = dict.fromkeys(self.tasks, 0.0), dict.fromkeys(self.tasks, 0)
        for batch in self.chunks(split):
            for task, outputs in self.outputs(batch).items():
                targets = batch[task][1]
                sums[task] += len(targets) * float(self.loss(task, outputs, targets))
                counts[task] += len(targets)
                meters[task].update(outputs, targets)
        self.network.train()
        return {task: {"loss": sums[task] / counts[task], **meters[task].scores()} for task in self.tasks}

    def _evaluation(self, results: Results) -> Evaluation:
        losses = [results[task]["loss"] for task in self.tasks]
        scores = list(losses) if self.named_metrics else [results[task][task] for task in self.tasks]
        return Evaluation(scores, losses, list(self.tasks), self.metric)

    def write_artifacts(self, folder: Path) -> dict[str, Any]:
        """Return the additional scores of the test, and their metrics."""
        tested = {name: value for results in self.tested.values() for name, value in results.items()}
        scores = {name: tested[name] for name in self.named_metrics}
        return {"additional_scores": scores, "additional_metrics": dict(self.named_metrics)} if scores else {}

    def metadata(self) -> dict[str, Any]:
        held_out = self.validates_on == "validation"
        return super().metadata() | {"fingerprints": {"problem": self.fingerprint}, "held_out": held_out}

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"recent": self.recent, "best": dict(self.best)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.recent, self.best = list(state["recent"]), dict(state["best"])


def _with_head(network: SharedNetwork, task: str) -> SharedNetwork:
    """Return a copy of a network with the head of one task only."""
    single = copy.deepcopy(network)
    single.heads = nn.ModuleDict({task: single.heads[task]})
    return single
