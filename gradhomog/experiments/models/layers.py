"""What the networks for images share: convolutions as they start, shortcuts, how a network is cut, checks of sizes."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping

from torch import nn

from gradhomog.errors import ConfigError


def convolution(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0, bias: bool = False
) -> nn.Conv2d:
    """A square convolution with weights from N(0, 2 / (kernel² · outputs)); a bias starts as PyTorch's does.

    He et al. 2015 ("Delving Deep into Rectifiers", eq. 14): derivatives keep their variance on the way back through
    ReLU. The code of Chen et al. 2019 says fan-in and computes this, the fan-out; so does that of Lee et al. 2019
    (`kaiming_normal_(mode="fan_out", nonlinearity="leaky_relu")`, which without the slope is ReLU's formula).
    """
    made = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=bias)
    nn.init.normal_(made.weight, std=math.sqrt(2 / (kernel * kernel * outputs)))
    return made


def shortcut(inputs: int, outputs: int, *, stride: int = 1) -> nn.Sequential:
    """A 1×1 convolution and batch normalization, where a block changes the number of maps."""
    return nn.Sequential(convolution(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))


def split_network(
    body: Mapping[str, nn.Module], tail: Mapping[str, nn.Module], linear: nn.Linear, *, flatten: bool
) -> tuple[nn.Module, nn.Module]:
    """Encoder and head: the tail, which makes maps to vectors, is the encoder's end or else the head's beginning."""
    if flatten:
        return nn.Sequential(OrderedDict({**body, **tail})), linear
    return nn.Sequential(OrderedDict(body)), nn.Sequential(OrderedDict({**tail, "linear": linear}))


def check_sizes(name: str, *, size: int, smallest: int, **counts: int) -> None:
    """Refuse images that the network's pools reduce to nothing, and channels, widths or outputs below one.

    Raises:
        ConfigError: a number is too small.
    """
    for what, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name}: `{what}` must be at least 1; got {count}.")
    if size < smallest:
        raise ConfigError(
            f"{name} needs images of at least {smallest}×{smallest} pixels: its pools leave nothing of smaller ones; "
            f"got {size}×{size}. Use larger images, or a resnet10 or resnet18."
        )
