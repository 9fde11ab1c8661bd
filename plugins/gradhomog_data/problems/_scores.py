"""Scores of a task that are functions of all its outputs and targets of a split."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of examples `[n, classes]` whose largest output is that of their class `[n]`."""
    return float((outputs.argmax(1) == targets).double().mean())


def f1(outputs: Tensor, targets: Tensor) -> float:
    """Return 2 TP / (2 TP + FP + FN) of logits `[n, 1]` and labels `[n]`; 0 without positive outputs and labels."""
    positive = (outputs[:, 0] > 0).to(targets.dtype)
    total = positive.sum() + targets.sum()
    return float(2 * (positive * targets).sum() / total) if total > 0 else 0.0


def absolute_error(outputs: Tensor, targets: Tensor) -> float:
    """Return the mean absolute error of outputs `[n, 1]` for targets `[n]`."""
    return float((outputs[:, 0] - targets).abs().double().mean())


@dataclass
class Collected:
    """The meter of a score that is a function of all outputs `[n, ...]` and targets `[n]` of a split."""

    task: str
    score: Callable[[Tensor, Tensor], float]
    batches: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.batches.append((outputs, targets))

    def scores(self) -> dict[str, float]:
        outputs, targets = (torch.cat(parts) for parts in zip(*self.batches, strict=True))
        return {self.task: self.score(outputs, targets)}
