"""Networks by name, as in `network.name` of a run file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradhomog.errors import ConfigError
from gradhomog.registry import installed

if TYPE_CHECKING:
    from torch import nn


def has_maps(name: str) -> bool:
    """True if the encoder of a network can end with feature maps instead of vectors."""
    spec: Any = installed().load("networks", name)[1]
    return bool(spec.maps)


def build(
    name: str, input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True
) -> tuple[nn.Module, nn.Module]:
    """Return the encoder and head of a network, initialized from PyTorch's global generator.

    Args:
        name: a plugin of the group `gradhomog.networks`.
        input_shape: shape of one input: (channels, height, width) for images.
        outputs: classes or targets, >= 1.
        width: filters of the first block, or hidden units, >= 1.
        flatten: False makes the encoder return its last feature map, `[n, maps, h, w]`.

    Raises:
        GradhomogError: the name is unknown, or the network does not support inputs of this shape.

    >>> encoder, head = build("conv4", (3, 84, 84), outputs=5, width=64)
    >>> head
    Linear(in_features=1600, out_features=5, bias=True)
    """
    if not flatten and not has_maps(name):
        raise ConfigError(f"`network.name` {name} has no feature maps for `flatten=False`; use a network for images.")
    made: tuple[nn.Module, nn.Module] = installed().make(
        "networks", name, {}, tuple(input_shape), outputs, width, flatten=flatten
    )[2]
    return made
