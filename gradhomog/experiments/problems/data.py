"""The data of a supervised multi-task problem: inputs that all tasks share and targets of each, in three parts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradhomog.experiments.analysis.metrics import Metric, metric
from gradhomog.experiments.data.seeding import generator


class Part(NamedTuple):
    """Some examples.

    Attributes:
        inputs: float32 `[n, *input]`.
        targets: one tensor for each task: int64 classes `[n]`, or float32 `[n, 1]`.
    """

    inputs: Tensor
    targets: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Data:
    """What a network of several tasks is trained on, and judged by.

    Attributes:
        tasks: their names.
        outputs: of each task's head: its classes, or 1.
        metric: of the tasks' scores: "accuracy", or "r2" with a mean squared error as the loss.
        train, validation, test: no example is in two of them.
        notes: sentences for the report that say what the data are.
    """

    tasks: tuple[str, ...]
    outputs: tuple[int, ...]
    metric: Metric
    train: Part
    validation: Part
    test: Part
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A short hash of every number in it: results of other data are not continued."""
        found = hashlib.sha256()
        for part in (self.train, self.validation, self.test):
            for tensor in (part.inputs, *part.targets):
                found.update(tensor.contiguous().numpy().tobytes())
        return found.hexdigest()[:12]


def r_squared(outputs: Tensor, targets: Tensor) -> float:
    """R² = 1 − Σ (y − f)² / Σ (y − ȳ)², ȳ the mean of these targets: 1 is perfect, 0 as good as that mean.

    NaN if all targets are the same.
    """
    outputs, targets = outputs.double(), targets.double()
    spread = (targets - targets.mean()).square().sum()
    return float(1 - (targets - outputs).square().sum() / spread) if spread > 0 else float("nan")


ACCURACY, R2 = metric("accuracy"), metric("r2")


def batch_indices(examples: int, size: int, seed: int, index: int) -> Tensor:
    """The examples of batch `index`: every epoch is a permutation of its own, cut into batches of one size.

    The last examples of an epoch, which fill no batch, are left out in it. Where `size` is not below the number of
    examples, a batch is all of them.
    """
    if size >= examples:
        return torch.arange(examples)
    epoch, place = divmod(index, examples // size)
    order = generator(seed, epoch).permutation(examples)
    return torch.from_numpy(order[place * size : (place + 1) * size])
