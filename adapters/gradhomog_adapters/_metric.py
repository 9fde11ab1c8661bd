"""Learners without an inner loop: queries are compared with the features of their task's support set."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog import DataError
from gradhomog_adapters._network.functional import Parameters
from gradhomog_adapters._network.norm import Statistics
from gradhomog_adapters.few_shot import FewShotLearner, Query, Support

ABSENT = -torch.inf


class Metric(FewShotLearner):
    """A learner which adapts nothing: `adapt` describes the classes of a task by tensors `task.*`, with which `outputs`
    compares the query features.

    The head is not used except for the number of its outputs, the most classes that a task can have; its rows are zero.
    A class without a support example gets the output −∞, probability zero: it takes no part in loss and scores. A
    query of such a class makes the loss infinite, which is reported as a task that is not finite.

    Only the query features go through the homogenizers' `transform`, as in MAML, where the head was adapted to support
    features that were not transformed. A rotation of both would change neither distances nor inner products. Maps
    `[n, C, h, w]` are transformed as vectors of C·h·w numbers.
    """

    absent: float = ABSENT
    """The output of a class without a support example."""

    def described_classes(self, parameters: Parameters, support: Support) -> dict[str, Tensor]:
        """Support features as `task.features` `[support, *]`, and `task.members` `[support, ways]`: 1 where an example
        is of a class, else 0."""
        self.refuse_regression(support.y)
        features = self.support_features(parameters, support)
        with torch.no_grad():
            ways = self.network.call("head.", parameters, support.buffers, features.detach()).shape[-1]
        return {"task.features": features, "task.members": one_hot(support.y, ways).to(features)}

    def support_features(self, parameters: Parameters, support: Support) -> Tensor:
        """Features of the support set; their statistics are those that `norm="support"` normalizes queries with."""
        with self.normalizations.record() as support.statistics:
            return wide(support.features(parameters))

    def query(self, point: Parameters, support: Support, x: Tensor, y: Tensor | None, statistics: Statistics) -> Query:
        """The query set, with features as vectors `[queries, features]`."""
        found = super().query(point, support, x, y, statistics)
        found.features = wide(found.features).flatten(1)
        return found

    def without_absent(self, parameters: Parameters, outputs: Tensor) -> Tensor:
        """Outputs `[queries, ways]`, with `absent` for classes without a support example."""
        return torch.where(parameters["task.members"].sum(0) > 0, outputs, self.absent)

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


def one_hot(targets: Tensor, ways: int) -> Tensor:
    """Of classes `[n]`: bool `[n, ways]`, without reading their values."""
    return targets[:, None] == torch.arange(ways, device=targets.device)


def class_means(support: Tensor, members: Tensor) -> Tensor:
    """The mean of each class's features, `[ways, *]`; zero of a class without any."""
    with torch.autocast(support.device.type, enabled=False):
        means: Tensor = (members.T @ support.flatten(1)) / members.sum(0).clamp_min(1)[:, None]
    return means.reshape(-1, *support.shape[1:])
