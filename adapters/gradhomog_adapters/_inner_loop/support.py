"""The support set as inner loops see it: what they change, what stays, and the loss as a function of the former."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradhomog_adapters._episodic.calculus import Loss
from gradhomog_adapters._episodic.episode import Episode
from gradhomog_adapters._episodic.learner import Episodic
from gradhomog_adapters._episodic.network import Parameters


def divided(meta: Parameters, adapted: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Where an inner loop begins, and the parameters that it does not change.

    Some of `adapted` may have been frozen since the learner was made: they are no meta-parameters then.
    """
    start = {name: meta[name] for name in adapted if name in meta}
    return start, {name: tensor for name, tensor in meta.items() if name not in start}


def encoded_once(learner: Episodic, start: Parameters, others: Parameters, episode: Episode) -> Tensor | None:
    """Support features, if inner steps change nothing of the encoder: they are the same in all of them."""
    if any(name.startswith("encoder.") for name in start):
        return None
    return learner.network.encode(others, episode.buffers, episode.support_x)


def support_loss(
    learner: Episodic,
    episode: Episode,
    others: Parameters,
    encoded: Tensor | None = None,
    examples: tuple[Tensor, Tensor] | None = None,
) -> Loss:
    """L_S as a function of parameters.

    Args:
        others: the parameters that are held.
        encoded: support features, if they are known already.
        examples: inputs and targets in place of the support set.
    """
    x, y = examples or (episode.support_x, episode.support_y)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        point, buffers = {**others, **parameters}, episode.buffers
        features = learner.network.encode(point, buffers, x) if encoded is None else encoded
        return learner.loss(learner.network.classify(point, buffers, features), y)

    return loss
