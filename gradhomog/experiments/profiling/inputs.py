"""What works that are timed beside each other start from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Gradients:
    """Of a step on a matrix: gradients `[tasks, params]` and losses `[tasks]`."""

    rows: Tensor
    losses: Tensor


@dataclass(frozen=True)
class Features:
    """Of an update of rotations: features `[tasks, queries, features]`, and the losses' derivatives by them rotated."""

    features: Tensor
    cotangents: Tensor
