"""Features of several tasks and their gradients, new in every round, for the benchmark of rotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Features:
    """Features `[tasks, queries, features]`, and the gradients of the losses w.r.t. the rotated features."""

    features: Tensor
    gradients: Tensor


def draw(shape: Sequence[int], number: int) -> Features:
    """The input of a round: random features, and gradients with a shared direction plus one direction per task."""
    tasks, queries, width = shape
    random = torch.Generator().manual_seed(number)
    shared = functional.normalize(torch.randn(1, 1, width, generator=random), dim=-1)
    own = functional.normalize(torch.randn(tasks, 1, width, generator=random), dim=-1)
    noise = torch.randn(tasks, queries, width, generator=random) / width**0.5
    return Features(torch.randn(tasks, queries, width, generator=random), shared + own + noise)
