"""The shape of an encoder's features, for learners with additional modules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from gradhomog import OptionError
from gradhomog_adapters.few_shot import FewShotLearner


def feature_shape(learner: FewShotLearner, input_shape: Sequence[int] | None) -> tuple[int, ...]:
    """Feature shape of one input: `(features,)` or `(C, h, w)`.

    Args:
        input_shape: shape of one input; the encoder runs on two zero inputs and is not changed. None: return the number
            of inputs of the head's first linear layer.

    Raises:
        OptionError: the head has no linear layer, or the encoder does not accept such inputs.
    """
    if input_shape is None:
        linear = next((part for part in learner.head.modules() if isinstance(part, nn.Linear)), None)
        if linear is None:
            raise OptionError(
                "`input_shape` must be given, as in input_shape=[3, 84, 84]: the head has no torch.nn.Linear "
                "with a number of features."
            )
        return (linear.in_features,)
    if not input_shape or any(length < 1 for length in input_shape):
        raise OptionError(f"`input_shape` must contain positive integers; got {list(input_shape)}.")
    parameters = learner.named_parameters()
    zeros = next(iter(parameters.values())).new_zeros(2, *input_shape)
    try:
        with learner.mode(training=False), torch.no_grad():
            features = learner.network.call("encoder.", parameters, learner.network.buffers(), zeros)
    except (RuntimeError, ValueError, IndexError) as cause:
        raise OptionError(
            f"`input_shape` must be the shape of one input of the encoder, which does not accept {list(input_shape)}: "
            f"{str(cause).strip().partition(chr(10))[0]}"
        ) from cause
    return tuple(features.shape[1:])
