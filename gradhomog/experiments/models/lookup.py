"""Look up a network by name and build its encoder and head for the shape of the inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch import nn

from gradhomog.errors import ConfigError, did_you_mean
from gradhomog.experiments.models.convolutional import conv4, conv6
from gradhomog.experiments.models.perceptron import mlp
from gradhomog.experiments.models.residual import resnet10, resnet18
from gradhomog.experiments.models.residual12 import resnet12

FOR_IMAGES: Mapping[str, Callable[..., tuple[nn.Module, nn.Module]]] = MappingProxyType(
    {"conv4": conv4, "conv6": conv6, "resnet10": resnet10, "resnet12": resnet12, "resnet18": resnet18}
)

NAMES = (*FOR_IMAGES, "mlp")
"""Values of `network.name` in a run file."""


def build(
    name: str, input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True
) -> tuple[nn.Module, nn.Module]:
    """Return the encoder and head of a network by name, initialized from PyTorch's global generator.

    Args:
        name: one of `NAMES`.
        input_shape: shape of one input: (channels, height, width) for images, any for mlp.
        outputs: classes or targets, >= 1.
        width: filters of the first block, or hidden units of mlp, >= 1.
        flatten: False makes the encoder return its last feature map, `[n, maps, h, w]`; not available for mlp.

    Raises:
        ConfigError: the name is unknown, or the network does not support inputs of this shape.

    >>> encoder, head = build("conv4", (3, 84, 84), outputs=5, width=64)
    >>> head
    Linear(in_features=1600, out_features=5, bias=True)
    """
    if name == "mlp":
        if not flatten:
            raise ConfigError("`network.name` mlp has no feature maps for `flatten=False`; use a network for images.")
        return mlp(math.prod(input_shape), width, outputs)
    if name not in FOR_IMAGES:
        hint = did_you_mean(name, NAMES)
        raise ConfigError(f"`network.name` must be one of {', '.join(NAMES)}; got {name!r}.{hint}")
    if len(input_shape) != 3 or input_shape[1] != input_shape[2]:
        raise ConfigError(
            f"`network.name` {name} takes square images; the domains give inputs of shape {tuple(input_shape)}. "
            "Use mlp for vectors."
        )
    return FOR_IMAGES[name](input_shape[0], width, input_shape[1], outputs, flatten=flatten)
