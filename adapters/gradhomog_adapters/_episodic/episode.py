"""One task as a learner works on it: its tensors, buffers of its own, and how derivatives are taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradhomog_adapters._episodic.calculus import Calculus, OnGraph, Transform
from gradhomog_adapters._episodic.network import Parameters


def _alone(features: Tensor) -> list[Tensor]:
    return [features[None]]


def _silent(part: Any) -> None:
    """Nobody is told."""


@dataclass
class Episode:
    """What a learner is given of one task.

    Attributes:
        support_x, support_y, query_x, query_y: as in `Task`; at meta-test there are no `query_y`.
        buffers: copies: what the task writes into them dies with it.
        calculus: how its derivatives are taken.
        begin: to be called with `"support"` or `"query"` before the encoder runs on that set.
        transform: the homogenizers' `transform` stages: from query features to the taps `[1, queries, features]`.
    """

    support_x: Tensor
    support_y: Tensor
    query_x: Tensor
    query_y: Tensor | None
    buffers: Parameters
    calculus: Calculus
    begin: Callable[[Any], None] = _silent
    transform: Transform = _alone

    @classmethod
    def unseen(cls, support_x: Tensor, support_y: Tensor, query_x: Tensor, buffers: Parameters) -> Episode:
        """A task at meta-test."""
        return cls(support_x, support_y, query_x, None, buffers, OnGraph())
