"""The query set at a point that the support set led to: its row while training, its outputs at meta-test."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradhomog import TaskRow
from gradhomog_adapters._episodic.episode import Episode
from gradhomog_adapters._episodic.learner import Episodic
from gradhomog_adapters._episodic.network import Parameters
from gradhomog_adapters._network.norm import Statistics

Arrived = tuple[Parameters, Statistics]


def query_row(
    learner: Episodic, episode: Episode, at: dict[str, Tensor], arrive: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> TaskRow:
    """∇ L_Q(arrive(at)) by `at`: loss, outputs, features and their cotangents beside it.

    Args:
        at: the named tensors to differentiate by.
        arrive: from there to the parameters that the query set meets, both those of encoder and head by their names.
    """
    assert episode.query_y is not None
    targets = episode.query_y

    def lead(start: dict[str, Tensor]) -> tuple[Arrived, list[Tensor]]:
        point = arrive(start)
        statistics = learner.statistics(point, episode)
        return (point, statistics), [learner.encode(point, episode, statistics)]

    def score(arrived: Arrived, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        point, statistics = arrived
        outputs = learner.classify(point, episode, statistics, features[-1])
        return learner.loss(outputs, targets), outputs

    return episode.calculus.row(lead, score, at, episode.transform)


def query_outputs(learner: Episodic, episode: Episode, point: Parameters) -> Tensor:
    """Outputs at meta-test; differentiable by the query inputs, if these are to be differentiated by."""
    differentiable = torch.is_grad_enabled() and episode.query_x.requires_grad
    with torch.set_grad_enabled(differentiable):
        statistics = learner.statistics(point, episode)
        return learner.classify(point, episode, statistics, learner.encode(point, episode, statistics))
