"""A network for vectors."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int, width: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    """Two hidden layers of ReLU and a linear head: Finn et al. 2017 use width 40 for sinusoids.

    Inputs `[n, ...]` of `inputs` numbers each are flattened; features are `[n, width]`. Parameters with the head, for
    one input and one output: 1761. It starts as PyTorch's linear layers do, uniform within 1/√inputs of 0; the code of
    Finn et al. draws weights from a truncated normal of deviation 0.01 and has biases 0.

    >>> import torch
    >>> encoder, head = mlp(1, 40, 1)
    >>> head(encoder(torch.zeros(3, 1))).shape
    torch.Size([3, 1])
    """
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return encoder, nn.Linear(width, outputs)
