"""The default loss and the accuracy of learners."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
"""A loss function, called as `loss(outputs, targets)`; it returns a scalar, the mean over the examples."""


def default_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy for integer targets, the mean squared error for floating-point targets."""
    if targets.is_floating_point():
        return torch.nn.functional.mse_loss(outputs, targets)
    return torch.nn.functional.cross_entropy(outputs, targets)


def accuracy(outputs: Tensor, targets: Tensor) -> float | None:
    """Return the share of correct class predictions; None for regression."""
    if targets.is_floating_point():
        return None
    return float((outputs.argmax(dim=1) == targets).double().mean())


def accuracies(outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Return each task's accuracy, float64 `[tasks]`, from outputs `[tasks, queries, ways]`; None for regression."""
    return None if targets.is_floating_point() else (outputs.argmax(dim=-1) == targets).double().mean(-1)
