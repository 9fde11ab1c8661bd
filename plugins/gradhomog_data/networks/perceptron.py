"""Multilayer perceptron, a network for vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn


def mlp(input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True) -> tuple[nn.Module, nn.Module]:
    """Two hidden layers with ReLU and a linear head; Finn et al. 2017 use width 40 for sinusoids.

    Inputs `[n, *input_shape]` are flattened; features are `[n, width]`. Parameters with the head, for
    width 40, one input and one output: 1761. Initialization is that of PyTorch's linear layers, uniform within
    1/√inputs of 0; the code of Finn et al. draws weights from a truncated normal distribution with standard deviation
    0.01 and sets biases to 0.

    >>> import torch
    >>> encoder, head = mlp((1,), 1, 40)
    >>> head(encoder(torch.zeros(3, 1))).shape
    torch.Size([3, 1])
    """
    inputs = math.prod(input_shape)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return encoder, nn.Linear(width, outputs)
