"""Shared parts of networks for images: initialized convolutions, shortcuts, the split into encoder and head, checks."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from torch import nn

from gradhomog import ConfigError


def convolution(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0, bias: bool = False
) -> nn.Conv2d:
    """Return a square convolution with weights from N(0, 2 / (kernel² · outputs)) and a bias initialized as in PyTorch.

    He et al. 2015 ("Delving Deep into Rectifiers", eq. 14): gradients keep their variance in the backward pass through
    ReLU. The code of Chen et al. 2019 names fan-in and computes this fan-out; the code of Lee et al. 2019 computes the
    fan-out too (`kaiming_normal_(mode="fan_out", nonlinearity="leaky_relu")`; its default slope of 0 gives the formula
    of ReLU).
    """
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=bias)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (kernel * kernel * outputs)))
    return layer


def shortcut(inputs: int, outputs: int, *, stride: int = 1) -> nn.Sequential:
    """Return a 1×1 convolution and batch normalization, for blocks that change the number of maps."""
    return nn.Sequential(convolution(inputs, outputs, 1, stride=stride), nn.BatchNorm2d(outputs))


def split_network(
    body: Mapping[str, nn.Module], tail: Mapping[str, nn.Module], linear: nn.Linear, *, flatten: bool
) -> tuple[nn.Module, nn.Module]:
    """Return encoder and head. The tail, which turns maps into vectors, ends the encoder or begins the head."""
    if flatten:
        return nn.Sequential(OrderedDict({**body, **tail})), linear
    return nn.Sequential(OrderedDict(body)), nn.Sequential(OrderedDict({**tail, "linear": linear}))


def image_shape(name: str, input_shape: Sequence[int], smallest: int = 1) -> tuple[int, int]:
    """Return the channels and the side of square images.

    Raises:
        ConfigError: inputs are not square images, or so small that pooling reduces them to nothing.
    """
    if len(input_shape) != 3 or input_shape[1] != input_shape[2]:
        raise ConfigError(
            f"`network.name` {name} takes square images; the domains give inputs of shape {tuple(input_shape)}. "
            "Use mlp for vectors."
        )
    channels, size, _ = input_shape
    if size < smallest:
        raise ConfigError(
            f"{name} needs images of at least {smallest}×{smallest} pixels: pooling reduces smaller ones to nothing; "
            f"got {size}×{size}. Use larger images, or a resnet10 or resnet18."
        )
    return channels, size
