"""The default loss, and the share of correct predictions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
"""Called as `loss(outputs, targets)`, returns a scalar: the mean over the examples."""


def default_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy for integer targets, mean squared error for others."""
    if targets.is_floating_point():
        return torch.nn.functional.mse_loss(outputs, targets)
    return torch.nn.functional.cross_entropy(outputs, targets)


def accuracy(outputs: Tensor, targets: Tensor) -> float | None:
    """The share of correct class predictions; None for regression."""
    if targets.is_floating_point():
        return None
    return float((outputs.argmax(dim=1) == targets).double().mean())


def accuracies(outputs: Tensor, targets: Tensor) -> Tensor | None:
    """`accuracy` of many tasks, `[tasks, queries, ways]`: float64 `[tasks]`."""
    return None if targets.is_floating_point() else (outputs.argmax(dim=-1) == targets).double().mean(-1)
