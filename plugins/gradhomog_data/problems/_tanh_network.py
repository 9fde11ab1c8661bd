"""A tanh network with its first and second derivatives w.r.t. the inputs, propagated from layer to layer."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear


def value_and_derivatives(
    inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], first_order: int = 0, second_order: int = 0
) -> Tensor:
    """Return u, ∂u/∂x_i and ∂²u/∂x_i² of u(x) = w_L · tanh(… tanh(W₁ x + b₁) …) + b_L.

    Derivatives are propagated from layer to layer, instead of nested reverse passes. With h = tanh(v) and ′ = ∂/∂x_i,

        v = W h₋ + b,   v′ = W h₋′,   v″ = W h₋″
        h = tanh(v),    h′ = (1 − h²) v′,   h″ = (1 − h²) v″ − 2 h (1 − h²) v′²

    so that all derivatives of a layer are one product with its matrix.

    Args:
        inputs: `[points, inputs]`; it receives no gradient.
        weights: `[outputs, inputs]` of each layer, at least two; the last has one output.
        biases: `[outputs]` of each layer.
        first_order: first derivatives w.r.t. the first `first_order` inputs, ≤ inputs.
        second_order: second derivatives w.r.t. the first `second_order` inputs, ≤ `first_order`.

    Returns:
        `[1 + first_order + second_order, points]`: the value, the first derivatives, the second derivatives.

    Differentiable once w.r.t. weights and biases, by a hand-written reverse pass.

    Cost: (1 + first_order + second_order) forward passes; the reverse pass costs two to three times as much.

    >>> x, w, b = torch.tensor([[0.5]]), [torch.ones(1, 1)] * 2, [torch.zeros(1)] * 2
    >>> value_and_derivatives(x, w, b, first_order=1, second_order=1).flatten()  # tanh 0.5 and its derivatives
    tensor([ 0.4621,  0.7864, -0.7269])
    """
    if not first_order:  # the usual operations are faster for the value alone
        value = inputs
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            value = torch.tanh(linear(value, weight, bias))
        return linear(value, weights[-1], biases[-1]).t()
    sizes = first_order, second_order
    result: Tensor = _Propagation.apply(inputs, *sizes, *weights, *biases)  # type: ignore[no-untyped-call]
    return result


class _Propagation(torch.autograd.Function):
    """The forward pass of `value_and_derivatives`, and its reverse pass.

    One node instead of some fifty operations: for a few hundred points, the overhead of operations is most of the time.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, first_order: int, second_order: int, *parameters: Tensor) -> Tensor:
        depth = len(parameters) // 2
        weights, biases = parameters[:depth], parameters[depth:]
        values, points = 1 + first_order + second_order, len(inputs)
        # Of the first layer, v′ are columns of the matrix, the same for all points, and v″ = 0.
        before = weights[0].t()[:first_order, None]
        after = _tanh(torch.addmm(biases[0], inputs, weights[0].t()), before, None, second_order)
        saved = [inputs, before, after]
        for weight, bias in zip(weights[1:-1], biases[1:-1], strict=True):
            before = (after.view(values * points, -1) @ weight.t()).view(values, points, -1)
            before[0] += bias
            after = _tanh(before[0], before[1 : 1 + first_order], before[1 + first_order :], second_order)
            saved += [before, after]
        result = (after.view(values * points, -1) @ weights[-1].t()).view(values, points)
        result[0] += biases[-1]
        ctx.sizes = first_order, second_order, depth
        ctx.save_for_backward(*weights, *saved)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        first_order, second_order, depth = ctx.sizes
        weights, (inputs, *layers) = ctx.saved_tensors[:depth], ctx.saved_tensors[depth:]
        to_weights = [gradient.reshape(1, -1) @ layers[-1].view(gradient.numel(), -1)]
        to_biases = [gradient[0].sum(0, keepdim=True)]
        to_after = gradient[..., None] * weights[-1][0]
        for layer in range(depth - 2, 0, -1):
            before, after = layers[2 * layer], layers[2 * layer + 1]
            first, second = before[1 : 1 + first_order], before[1 + first_order :]
            to_before = _reverse_tanh(to_after, after[0], first, second, second_order)
            rows = to_before.view(-1, to_before.shape[-1])
            to_biases.append(to_before[0].sum(0))
            to_weights.append(rows.t() @ layers[2 * layer - 1].view(len(rows), -1))
            to_after = (rows @ weights[layer]).view(len(to_before), len(inputs), -1)
        to_before = _reverse_tanh(to_after, layers[1][0], layers[0], None, second_order)
        to_biases.append(to_before[0].sum(0))
        to_weight = to_before[0].t() @ inputs
        to_weight[:, :first_order] += to_before[1 : 1 + first_order].sum(1).t()
        to_weights.append(to_weight)
        return None, None, None, *reversed(to_weights), *reversed(to_biases)


def _tanh(v: Tensor, first: Tensor, second: Tensor | None, second_order: int) -> Tensor:
    """Return h, h′, h″, `[values, points, width]`; None for v″ = 0.

    With s = 1 − h²:  h′ = s v′,   h″ = s v″ − 2 h v′ h′
    """
    first_order = len(first)
    result = torch.empty(1 + first_order + second_order, *v.shape, dtype=v.dtype, device=v.device)
    h = torch.tanh(v, out=result[0])
    tanh_derivative = 1 - h.square()
    torch.mul(first, tanh_derivative, out=result[1 : 1 + first_order])
    if second_order:
        product = first[:second_order] * result[1 : 1 + second_order]
        if second is None:
            torch.mul(product.mul_(-2), h, out=result[1 + first_order :])
        else:
            torch.mul(second, tanh_derivative, out=result[1 + first_order :]).addcmul_(product, h, value=-2)
    return result


def _reverse_tanh(gradient: Tensor, h: Tensor, first: Tensor, second: Tensor | None, second_order: int) -> Tensor:
    """Return the gradient w.r.t. v, v′, v″, `[values, points, width]`, from the gradient g, g′, g″ w.r.t. h, h′, h″.

    With s = 1 − h², so that ds/dv = −2 h s and d(−2 h s)/dv = (6 h² − 2) s = (4 − 6 s) s:

        to v″ = s g″,   to v′ = s g′ − 4 h v′ (s g″)
        to v  = s g − 2 h Σ (v′ (s g′) + v″ (s g″)) + (4 − 6 s) Σ v′² (s g″)

    Sums are over inputs. They accumulate in place, because the speed of memory limits these operations.
    """
    tanh_derivative = 1 - h.square()
    result = gradient * tanh_derivative
    to_first, to_second = result[1 : 1 + len(first)], result[1 + len(first) :]
    total = first[0] * to_first[0]
    for v, g in zip(first[1:], to_first[1:], strict=True):
        total.addcmul_(v, g)
    for v, g in zip(second if second is not None else (), to_second, strict=second is not None):
        total.addcmul_(v, g)
    result[0].addcmul_(total, h, value=-2)
    if second_order:
        product = first[:second_order] * to_second
        total = first[0] * product[0]
        for v, g in zip(first[1:second_order], product[1:], strict=True):
            total.addcmul_(v, g)
        result[0].addcmul_(total, tanh_derivative.mul_(-6).add_(4))
        to_first[:second_order].addcmul_(product, h, value=-4)
    return result


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
