"""Learners without an inner loop: features of the support set, features of the queries, and a loss that sees both."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from gradhomog import DataError, TaskRow
from gradhomog_adapters._episodic.episode import Episode
from gradhomog_adapters._episodic.learner import Episodic
from gradhomog_adapters._episodic.network import Parameters
from gradhomog_adapters._network.norm import Statistics


class Direct(Episodic):
    """A learner whose row is ∇ of a loss of one forward pass: nothing is adapted while training.

    The query features alone go through the homogenizers' `transform`, as in MAML, where the head was adapted to support
    features that were not transformed. A rotation of both would be nothing at all for distances and inner products,
    which it keeps. Maps `[n, C, h, w]` are transformed as vectors of C·h·w numbers.
    """

    @abstractmethod
    def judge(self, parameters: Parameters, support: Tensor, episode: Episode, features: Tensor) -> tuple[Tensor, Any]:
        """Loss, and outputs `[queries, ways]`, of support features `[support, *]` and query features as vectors."""

    def row(self, meta: Parameters, episode: Episode) -> TaskRow:
        self.refuse_regression(episode.support_y)

        def lead(start: dict[str, Tensor]) -> tuple[tuple[dict[str, Tensor], Tensor], list[Tensor]]:
            support, statistics = self.look(start, episode)
            return (start, support), [self.query_features(start, episode, statistics)]

        def score(point: tuple[dict[str, Tensor], Tensor], features: list[Tensor]) -> tuple[Tensor, Tensor]:
            return self.judge(*point, episode, features[-1])

        return episode.calculus.row(lead, score, dict(meta), episode.transform)

    def look(self, parameters: Parameters, episode: Episode) -> tuple[Tensor, Statistics]:
        """Support features, and what `norm="support"` normalizes queries with."""
        episode.begin("support")
        with self._normalizations.record() as found:
            features = self.network.encode(parameters, episode.buffers, episode.support_x)
        return wide(features), found

    def query_features(self, parameters: Parameters, episode: Episode, statistics: Statistics) -> Tensor:
        """Query features as vectors `[queries, features]`."""
        return wide(self.encode(parameters, episode, statistics)).flatten(1)

    def ways(self, parameters: Parameters, episode: Episode, support: Tensor) -> int:
        """How many classes tasks have at most: the outputs of the head, which serves for nothing else."""
        with torch.no_grad():
            return self.network.classify(parameters, episode.buffers, support.detach()).shape[-1]

    def call_own(self, name: str, parameters: Parameters, inputs: Tensor) -> Tensor:
        """A module of the learner's own as a function of its parameters."""
        prefix = f"learner.{name}."
        tensors = {n.removeprefix(prefix): tensor for n, tensor in parameters.items() if n.startswith(prefix)}
        result: Tensor = functional_call(self.own[name], tensors, (inputs,))
        return result

    def refuse_regression(self, targets: Tensor) -> None:
        """Raises DataError."""
        if targets.is_floating_point():
            raise DataError(
                f"{type(self).__name__} serves classification only; the targets are {targets.dtype}, of a regression. "
                "Use another learner, such as maml, or int64 classes."
            )


def wide(features: Tensor) -> Tensor:
    """In float32 at least: under autocast differences of distances would drown in eight bits."""
    return features.to(torch.promote_types(features.dtype, torch.float32))
