"""The networks of the few-shot literature, as (encoder, head)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from gradhomog.errors import ConfigError


def build(name: str, input_shape: Sequence[int], outputs: int, width: int) -> tuple[nn.Module, nn.Module]:
    """An encoder and a head by name, for inputs of a shape; initialised from PyTorch's global generator.

    Raises:
        ConfigError: the inputs do not suit the network.
    """
    if name == "conv4":
        if len(input_shape) != 3 or input_shape[1] != input_shape[2]:
            raise ConfigError(
                f"`network.name` conv4 takes square images; the domains give inputs of shape {tuple(input_shape)}. "
                "Use mlp for vectors."
            )
        return conv4(input_shape[0], width, input_shape[1], outputs)
    return mlp(math.prod(input_shape), width, outputs)


def conv4(channels: int, width: int, size: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    """Four blocks of 3×3 convolution, batch normalization, ReLU and 2×2 max-pooling; a linear head.

    Features: width · (size/16)², rounded down: 64 for 28 px and 1600 for 84 px with the 64 filters of the papers
    (Vinyals et al. 2016). Initialisation of Chen et al. 2019 ("A Closer Look"): convolutions N(0, 2/(9 · width)),
    biases as PyTorch's.
    """
    blocks: list[nn.Module] = []
    for index in range(4):
        convolution = nn.Conv2d(channels if index == 0 else width, width, 3, padding=1)
        nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * width)))
        blocks += [convolution, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*blocks, nn.Flatten()), nn.Linear(width * (size // 16) ** 2, outputs)


def mlp(inputs: int, width: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    """Two hidden layers of ReLU and a linear head: Finn et al. 2017 use width 40 for sinusoids."""
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return encoder, nn.Linear(width, outputs)
