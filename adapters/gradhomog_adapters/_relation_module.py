"""The relation module of RelationNet: maps a class mean and a query to one number."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

# From the authors' code and that of Chen et al. 2019.
DEFAULT_HIDDEN = 8
MIN_UNPADDED_SIZE = 10  # pixels; smaller maps are padded


def make_feature_map_module(shape: Sequence[int], hidden: int) -> nn.Module:
    """Module for pairs `[n, 2C, h, w]`: two blocks of convolution, batch normalization, ReLU and pooling, then two
    linear layers.

    Batch normalization has no running statistics: in the authors' code, with momentum 1, they are those of the last
    batch.
    """
    channels, height, width = shape
    padding = int(height < MIN_UNPADDED_SIZE and width < MIN_UNPADDED_SIZE)
    layers: list[nn.Module] = []
    for inputs in (2 * channels, channels):
        convolution = nn.Conv2d(inputs, channels, 3, padding=padding)
        nn.init.normal_(convolution.weight, std=math.sqrt(2 / (9 * channels)))
        layers += [convolution, nn.BatchNorm2d(channels, track_running_stats=False), nn.ReLU()]
        height, width = height + 2 * padding - 2, width + 2 * padding - 2
        if min(height, width) > 1:  # pooling a map of height or width 1 gives an empty map
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    classifier = [nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU(), nn.Linear(hidden, 1)]
    return nn.Sequential(*layers, *classifier)


def make_vector_module(features: int, hidden: int) -> nn.Module:
    """Module for pairs `[n, 2 · features]`: two linear layers, as the authors use for images and attribute vectors."""
    return nn.Sequential(nn.Linear(2 * features, hidden), nn.ReLU(), nn.Linear(hidden, 1))
