"""The relation module of RelationNet: from a pair of a class's mean and a query to one number."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

# The authors' code and that of Chen et al. 2019.
HIDDEN = 8
SMALL = 10  # pixels: smaller maps are padded


def of_maps(shape: Sequence[int], hidden: int) -> nn.Module:
    """For pairs `[n, 2C, h, w]`: two blocks of convolution, batch normalization, ReLU and pooling, two linear layers.

    Normalization keeps no statistics: those of the authors' code, with momentum 1, are of the batch that came last.
    """
    channels, height, width = shape
    padding = int(height < SMALL and width < SMALL)
    layers: list[nn.Module] = []
    for inputs in (2 * channels, channels):
        made = nn.Conv2d(inputs, channels, 3, padding=padding)
        nn.init.normal_(made.weight, std=math.sqrt(2 / (9 * channels)))
        layers += [made, nn.BatchNorm2d(channels, track_running_stats=False), nn.ReLU()]
        height, width = height + 2 * padding - 2, width + 2 * padding - 2
        if min(height, width) > 1:  # a pool leaves nothing of a line
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
    last = [nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU(), nn.Linear(hidden, 1)]
    return nn.Sequential(*layers, *last)


def of_vectors(features: int, hidden: int) -> nn.Module:
    """For pairs `[n, 2 · features]`: two linear layers, as the authors relate pictures to vectors of attributes."""
    return nn.Sequential(nn.Linear(2 * features, hidden), nn.ReLU(), nn.Linear(hidden, 1))
