"""Layer-wise relevance propagation (LRP) through a sequence of layers."""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import conv2d, linear

EPSILON = 0.01  # of the linear rule and the class scores, in the code of Sun et al. 2020

Layer = tuple[nn.Module, dict[str, Tensor]]
"""A module and its parameters by name."""


def relevance_of_inputs(layers: Iterable[Layer], inputs: Tensor, relevance: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Return the relevance of each input for the relevance of the outputs, of the shape of `inputs`, as a constant.

    Rules, from the outputs to the inputs, with R the relevance of the outputs of a layer:

        linear, ε-rule:              R_i ← x_i Σ_j w_ji R_j / (z_j + ε sign z_j),  z = W x,  sign 0 = 1
        convolution, α1β0-rule:      R_i ← Σ_j [w_ji x_i]₊ R_j / z_j,  z_j = Σ_i [w_ji x_i]₊,  [a]₊ = max(a, 0)
        max-pooling:                 all relevance to the maximum
        all others:                  unchanged

    Biases receive no relevance. A convolution preserves Σ R, except for outputs without a positive contribution, whose
    relevance is lost. With ε = 0, a linear layer preserves Σ R.

    Args:
        layers: linear layers, 2-d convolutions and max-poolings, flattening, and elementwise layers.
        inputs: `[n, *input]` of the first layer.
        relevance: `[n, *output]` of the last layer.
        epsilon: ε ≥ 0.

    Source: Bach et al. 2015, doi 10.1371/journal.pone.0130140, equations 58 and 60.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> inputs, relevance = torch.tensor([[1.0, 3.0]]), torch.tensor([[8.0]])
    >>> relevance_of_inputs([(layer, {"weight": torch.tensor([[1.0, 1.0]])})], inputs, relevance, epsilon=0.0)
    tensor([[2., 6.]])
    """
    with torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
        x, passes = inputs.detach(), []
        for module, parameters in layers:
            constants = {name: tensor.detach() for name, tensor in parameters.items()}
            passes.append((module, constants, x))
            x = functional_call(module, constants, (x,))
        relevance = relevance.detach()
        for module, constants, x in reversed(passes):
            if isinstance(module, nn.Linear):
                z = linear(x, constants["weight"])
                share = relevance / torch.where(z < 0, z - epsilon, z + epsilon)
                relevance = x * (share @ constants["weight"])
            elif isinstance(module, nn.Conv2d):
                relevance = _positive_contributions(module, constants["weight"], x, relevance)
            elif isinstance(module, nn.MaxPool2d):
                relevance = _pull_back(module, x, relevance)
            else:
                relevance = relevance.reshape(x.shape)
    return relevance


def _positive_contributions(module: nn.Conv2d, weight: Tensor, x: Tensor, relevance: Tensor) -> Tensor:
    """The α1β0-rule: contributions w x > 0 are those of positive w and x, and those of negative w and x."""

    def convolve(weight: Tensor, x: Tensor) -> Tensor:
        return conv2d(x, weight, None, module.stride, module.padding, module.dilation, module.groups)

    pairs = [(weight.clamp(min=0), x.clamp(min=0)), (weight.clamp(max=0), x.clamp(max=0))]
    z = convolve(*pairs[0]) + convolve(*pairs[1])
    share = torch.where(z > 0, relevance / torch.where(z > 0, z, 1), 0)
    first, second = (part * _pull_back(partial(convolve, signed), part, share) for signed, part in pairs)
    return first + second


def _pull_back(function: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient w.r.t. x, by `torch.func`, which works within `vmap` too."""
    found: Tensor = torch.func.vjp(function, x)[1](gradient)[0]
    return found
