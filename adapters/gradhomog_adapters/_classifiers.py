"""The classifiers of Baseline and Baseline++, and how one is fitted to a support set at meta-test."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from gradhomog import OptionError

# Of SGD in the code of Chen et al. 2019.
MOMENTUM, DAMPENING, WEIGHT_DECAY = 0.9, 0.9, 1e-3
MANY = 200  # classes


class MakeClassifier(Protocol):
    """Numbers are drawn from the generator, from the global one if there is none."""

    def __call__(self, features: int, outputs: int, generator: torch.Generator | None = None) -> nn.Module: ...


def linear(features: int, outputs: int, generator: torch.Generator | None = None) -> nn.Module:
    """A linear layer as PyTorch initialises it: uniform within 1/√features of 0."""
    made = nn.Linear(features, outputs, device="meta").to_empty(device="cpu")  # no numbers of the global generator
    for parameter in (made.weight, made.bias):
        nn.init.uniform_(parameter, -1 / math.sqrt(features), 1 / math.sqrt(features), generator=generator)
    return made


class Cosine(nn.Module):
    """outputs = scale · length_w · cos(direction_w, features): a linear layer under weight normalization.

    Lengths start at those of a linear layer's weights. Features of zero have outputs and derivatives of zero.
    """

    def __init__(self, features: int, outputs: int, scale: float, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.scale = scale
        weight = torch.empty(outputs, features, device="cpu")  # where the generator is
        nn.init.uniform_(weight, -1 / math.sqrt(features), 1 / math.sqrt(features), generator=generator)
        self.direction = nn.Parameter(weight)
        self.length = nn.Parameter(weight.norm(dim=1, keepdim=True))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * nn.functional.linear(unit(features), self.length * unit(self.direction))


def unit(vectors: Tensor) -> Tensor:
    """Rows of length one; those of zero stay zero."""
    square = vectors.square().sum(1, keepdim=True)
    return vectors / torch.where(square > 0, square, 1).sqrt()


class MakeCosine:
    """Makes cosine classifiers; 2 for up to 200 classes and 10 for more is the authors' scale."""

    def __init__(self, scale: float | None) -> None:
        if scale is not None and not 0 < scale < math.inf:
            raise OptionError(f"`scale` must be positive; got {scale!r}.")
        self.scale = scale

    def __call__(self, features: int, outputs: int, generator: torch.Generator | None = None) -> nn.Module:
        scale = self.scale or (2.0 if outputs <= MANY else 10.0)
        return Cosine(features, outputs, scale, generator)


def fit(
    classifier: nn.Module,
    features: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    generator: torch.Generator,
    *,
    lr: float,
    epochs: int,
    batch: int,
) -> nn.Module:
    """Stochastic gradient descent on features that stay as they are; the classifier is a constant afterwards."""
    parameters = list(classifier.parameters())
    velocities: list[Tensor] = []
    with torch.enable_grad(), torch.autocast(features.device.type, enabled=False):
        for _ in range(epochs):
            order = torch.randperm(len(features), generator=generator, device="cpu").to(features.device)
            for chosen in torch.split(order, batch):
                value = loss(classifier(features[chosen]), targets[chosen])
                gradients = torch.autograd.grad(value, parameters)
                with torch.no_grad():  # by hand: `torch.optim` would take as long again, on so small a problem
                    steps = [g.add(p, alpha=WEIGHT_DECAY) for g, p in zip(gradients, parameters, strict=True)]
                    # So that the first velocity is the first gradient, not dampened, as that of `torch.optim.SGD`.
                    velocities = velocities or [step * (DAMPENING / MOMENTUM) for step in steps]
                    for parameter, velocity, step in zip(parameters, velocities, steps, strict=True):
                        velocity.mul_(MOMENTUM).add_(step, alpha=1 - DAMPENING)
                        parameter.sub_(velocity, alpha=lr)
    return classifier.requires_grad_(False)
