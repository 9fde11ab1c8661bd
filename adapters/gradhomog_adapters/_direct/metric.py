"""Learners that compare queries with the support set of their task: their features, and which class is whose."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from gradhomog_adapters._direct.learner import Direct
from gradhomog_adapters._episodic.episode import Episode
from gradhomog_adapters._episodic.network import Parameters

ABSENT = -torch.inf


class Metric(Direct):
    """A learner whose outputs are a comparison of query features with support features.

    The head is not used but for the number of its outputs, the most classes that a task can have; its rows are zero.
    A class without a support example gets the output −∞, probability zero: it takes no part in loss and scores. A
    query of such a class makes the loss infinite, which is told as a task that is not finite.
    """

    absent: float = ABSENT  # the output of a class without a support example

    @abstractmethod
    def compare(self, parameters: Parameters, support: Tensor, members: Tensor, features: Tensor) -> Tensor:
        """Outputs `[queries, ways]`.

        Args:
            support: features `[support, *]`.
            members: `[support, ways]`, 1 where an example is of a class, else 0.
            features: of the queries, as vectors.
        """

    def judge(
        self, parameters: Parameters, support: Tensor, episode: Episode, features: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert episode.query_y is not None
        outputs = self._compared(parameters, support, episode, features)
        return self.loss(outputs, episode.query_y), outputs

    def outputs(self, meta: Parameters, episode: Episode) -> Tensor:
        self.refuse_regression(episode.support_y)
        with torch.set_grad_enabled(torch.is_grad_enabled() and episode.query_x.requires_grad):
            support, statistics = self.look(meta, episode)
            return self._compared(meta, support, episode, self.query_features(meta, episode, statistics))

    def _compared(self, parameters: Parameters, support: Tensor, episode: Episode, features: Tensor) -> Tensor:
        members = one_hot(episode.support_y, self.ways(parameters, episode, support)).to(support)
        outputs = self.compare(parameters, support, members, features)
        return torch.where(members.sum(0) > 0, outputs, self.absent)


def one_hot(targets: Tensor, ways: int) -> Tensor:
    """Of classes `[n]`: bool `[n, ways]`, without a look at their values."""
    return targets[:, None] == torch.arange(ways, device=targets.device)


def class_means(support: Tensor, members: Tensor) -> Tensor:
    """The mean of each class's features, `[ways, *]`; zero of a class without any."""
    with torch.autocast(support.device.type, enabled=False):
        means: Tensor = (members.T @ support.flatten(1)) / members.sum(0).clamp_min(1)[:, None]
    return means.reshape(-1, *support.shape[1:])
