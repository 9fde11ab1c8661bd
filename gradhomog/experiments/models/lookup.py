"""From the name of a network, and the shape of its inputs, to (encoder, head)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from torch import nn

from gradhomog.errors import ConfigError
from gradhomog.experiments.config.suggestions import did_you_mean
from gradhomog.experiments.models.convolutional import conv4, conv6
from gradhomog.experiments.models.perceptron import mlp
from gradhomog.experiments.models.residual import resnet10, resnet18
from gradhomog.experiments.models.residual12 import resnet12

FOR_IMAGES: Mapping[str, Callable[..., tuple[nn.Module, nn.Module]]] = MappingProxyType(
    {"conv4": conv4, "conv6": conv6, "resnet10": resnet10, "resnet12": resnet12, "resnet18": resnet18}
)

NAMES = (*FOR_IMAGES, "mlp")
"""What `network.name` of a run file may be."""


def build(
    name: str, input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True
) -> tuple[nn.Module, nn.Module]:
    """An encoder and a head by name, for inputs of a shape; initialised from PyTorch's global generator.

    Args:
        name: one of `NAMES`.
        input_shape: of one input: (channels, height, width) for images, any for mlp.
        outputs: classes or targets, >= 1.
        width: filters of the first block, or hidden units of mlp, >= 1.
        flatten: False keeps the encoder's last map, `[n, maps, h, w]`; not for mlp.

    Raises:
        ConfigError: the name is unknown, or the inputs do not suit the network.

    >>> encoder, head = build("conv4", (3, 84, 84), outputs=5, width=64)
    >>> head
    Linear(in_features=1600, out_features=5, bias=True)
    """
    if name == "mlp":
        if not flatten:
            raise ConfigError("`network.name` mlp has no maps, as `flatten=False` asks; use a network for images.")
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
