"""The network of physics-informed problems: a tanh multilayer perceptron of standardized inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradhomog_data.problems.pinn.derivatives import value_and_derivatives


class TanhNetwork(nn.Module):
    """u(x) = w_L · tanh(… tanh(W₁ z + b₁) …) + b_L with z = (x − centre) / scale, for points x of a box.

    Weights are drawn by Glorot and Bengio's normal initialization with gain 1, biases are 0, as in the code of Hwang
    and Lim 2024 (DCGD). With `standardize`, centre and scale are mean and standard deviation of a uniform distribution
    on the box; that code estimates them from 100,000 points.

    Args:
        lower, upper: corners of the box.
        width: units of a hidden layer, ≥ 1.
        depth: hidden layers, ≥ 1.
        standardize: False: z = x.
        generator: source of the initial weights.
    """

    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        lower: Sequence[float],
        upper: Sequence[float],
        width: int,
        depth: int,
        *,
        standardize: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        sizes = [len(lower), *[width] * depth, 1]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        for layer in self._linear_layers():
            nn.init.xavier_normal_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        centres, scales = [0.0] * len(lower), [1.0] * len(lower)
        if standardize:
            centres = [(low + high) / 2 for low, high in zip(lower, upper, strict=True)]
            scales = [(high - low) / math.sqrt(12) for low, high in zip(lower, upper, strict=True)]
        # Not part of the state: they follow from the box.
        self.register_buffer("centre", torch.tensor(centres), persistent=False)
        self.register_buffer("scale", torch.tensor(scales), persistent=False)

    def _linear_layers(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, points: Tensor, first_order: int = 0, second_order: int = 0) -> Tensor:
        """Return u and its derivatives w.r.t. the coordinates x, `[1 + first_order + second_order, points]`.

        Args:
            points: x, `[points, inputs]`.
            first_order, second_order: as in `value_and_derivatives`.
        """
        layers = self._linear_layers()
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        values = value_and_derivatives((points - self.centre) / self.scale, weights, biases, first_order, second_order)
        if not first_order:
            return values
        inverse = 1 / self.scale
        factors = torch.cat([inverse.new_ones(1), inverse[:first_order], inverse[:second_order].square()])
        return values * factors[:, None]
