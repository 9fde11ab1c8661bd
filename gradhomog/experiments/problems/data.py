"""Data of a supervised multi-task problem: shared inputs and targets per task, for training, validation and test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradhomog.experiments.analysis.metrics import Metric, metric
from gradhomog.experiments.data.seeding import generator


class SplitData(NamedTuple):
    """The examples of one split: training, validation or test.

    Attributes:
        inputs: float32 `[n, *input]`.
        targets: one tensor for each task: int64 classes `[n]`, or float32 `[n, 1]`.
    """

    inputs: Tensor
    targets: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Data:
    """Training, validation and test data of several tasks, and the metric of their scores.

    Attributes:
        tasks: names of the tasks.
        outputs: number of outputs of each task's head: its number of classes, or 1.
        metric: metric of the scores: "accuracy", or "r2" with a mean squared error as the loss.
        train, validation, test: the three splits; no example is in two of them.
        notes: sentences for the report that describe the data.
    """

    tasks: tuple[str, ...]
    outputs: tuple[int, ...]
    metric: Metric
    train: SplitData
    validation: SplitData
    test: SplitData
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Short hash of all inputs and targets, so that a comparison does not continue results of other data."""
        digest = hashlib.sha256()
        for split in (self.train, self.validation, self.test):
            for tensor in (split.inputs, *split.targets):
                digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:12]


def r_squared(outputs: Tensor, targets: Tensor) -> float:
    """Return R² = 1 − Σ (y − f)² / Σ (y − ȳ)², with the mean ȳ of these targets: 1 is perfect, 0 as good as ȳ.

    The result is NaN if all targets are equal.
    """
    outputs, targets = outputs.double(), targets.double()
    spread = (targets - targets.mean()).square().sum()
    return float(1 - (targets - outputs).square().sum() / spread) if spread > 0 else float("nan")


ACCURACY, R2 = metric("accuracy"), metric("r2")


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
