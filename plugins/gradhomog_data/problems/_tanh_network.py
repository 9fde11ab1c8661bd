"""A tanh network with its first and second derivatives w.r.t. the inputs, propagated from layer to layer."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


def value_and_derivatives(
    inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], first_order: int = 0, second_order: int = 0
) -> Tensor:
    """Return u, ∂u/∂x_i and ∂²u/∂x_i² of u(x) = w_L · tanh(… tanh(W₁ x + b₁) …) + b_L.

    Derivatives are propagated from layer to layer, instead of nested reverse passes. With h = tanh(v) and ′ = ∂/∂x_i,

        v = W h₋ + b,   v′ = W h₋′,   v″ = W h₋″
        h = tanh(v),    h′ = (1 − h²) v′,   h″ = (1 − h²) (v″ − 2 h v′²)

    so that all derivatives of a layer are one product with its matrix.

    Args:
        inputs: `[points, inputs]`.
        weights: `[outputs, inputs]` of each layer, at least two; the last has one output.
        biases: `[outputs]` of each layer.
        first_order: first derivatives w.r.t. the first `first_order` inputs, ≤ inputs.
        second_order: second derivatives w.r.t. the first `second_order` inputs, ≤ `first_order`.

    Returns:
        `[1 + first_order + second_order, points]`: the value, the first derivatives, the second derivatives.

    Cost: (1 + first_order + second_order) forward passes; the reverse pass costs two to three times as much.

    >>> x, w, b = torch.tensor([[0.5]]), [torch.ones(1, 1)] * 2, [torch.zeros(1)] * 2
    >>> value_and_derivatives(x, w, b, first_order=1, second_order=1).flatten()  # tanh 0.5 and its derivatives
    tensor([ 0.4621,  0.7864, -0.7269])
    """
    value, first = linear(inputs, weights[0])[None], weights[0].t()[:first_order, None]
    second = torch.zeros_like(first[:second_order])
    for bias, weight in zip(biases[:-1], weights[1:], strict=True):
        h = torch.tanh(value + bias)
        tanh_derivative = 1 - h.square()
        h_second = tanh_derivative * torch.addcmul(second, h, first[:second_order].square(), value=-2)
        layer = linear(torch.cat([h, tanh_derivative * first, h_second]), weight)
        # The reverse pass of one `split` is one `cat`; that of a slice fills a tensor of the size of the whole layer.
        value, first, second = torch.split(layer, [1, first_order, second_order])
    return torch.cat([value + biases[-1], first, second]).squeeze(-1)


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
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
        for layer in layers:
            nn.init.xavier_normal_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)
        centres, scales = [0.0] * len(lower), [1.0] * len(lower)
        if standardize:
            centres = [(low + high) / 2 for low, high in zip(lower, upper, strict=True)]
            scales = [(high - low) / math.sqrt(12) for low, high in zip(lower, upper, strict=True)]
        # Not part of the state: they follow from the box.
        self.register_buffer("centre", torch.tensor(centres), persistent=False)
        self.register_buffer("scale", torch.tensor(scales), persistent=False)

    def forward(self, points: Tensor, first_order: int = 0, second_order: int = 0) -> Tensor:
        """Return u and its derivatives w.r.t. the coordinates x, `[1 + first_order + second_order, points]`.

        Args:
            points: x, `[points, inputs]`.
            first_order, second_order: as in `value_and_derivatives`.
        """
        parameters, inputs = list(self.layers.parameters()), (points - self.centre) / self.scale
        values = value_and_derivatives(inputs, parameters[::2], parameters[1::2], first_order, second_order)
        inverse = 1 / self.scale
        factors = torch.cat([inverse.new_ones(1), inverse[:first_order], inverse[:second_order].square()])
        return values * factors[:, None]
