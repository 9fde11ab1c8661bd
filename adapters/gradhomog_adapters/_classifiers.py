"""The classifiers of Baseline and Baseline++, and the training of a classifier on a support set at meta-test."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from gradhomog import to_device

# SGD in the code of Chen et al. 2019.
MOMENTUM, DAMPENING, WEIGHT_DECAY = 0.9, 0.9, 1e-3
MANY_CLASSES = 200  # classes


class MakeClassifier(Protocol):
    """Make a classifier; its weights are drawn from `generator`, by default from the global generator."""

    def __call__(self, features: int, outputs: int, generator: torch.Generator | None = None) -> nn.Module: ...


def make_linear(features: int, outputs: int, generator: torch.Generator | None = None) -> nn.Module:
    """A linear layer with PyTorch's initialization: uniform in ±1/√features."""
    # On the meta device, so that nothing is drawn from the global generator.
    layer = nn.Linear(features, outputs, device="meta").to_empty(device="cpu")
    for parameter in (layer.weight, layer.bias):
        nn.init.uniform_(parameter, -1 / math.sqrt(features), 1 / math.sqrt(features), generator=generator)
    return layer


class CosineClassifier(nn.Module):
    """outputs = scale · length_w · cos(direction_w, features): a linear layer under weight normalization.

    Initial lengths are those of a linear layer's weights. For zero features, outputs and derivatives are zero.
    """

    def __init__(self, features: int, outputs: int, scale: float, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.scale = scale
        weight = torch.empty(outputs, features, device="cpu")  # the device of the generator
        nn.init.uniform_(weight, -1 / math.sqrt(features), 1 / math.sqrt(features), generator=generator)
        self.direction = nn.Parameter(weight)
        self.length = nn.Parameter(weight.norm(dim=1, keepdim=True))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * nn.functional.linear(normalize_rows(features), self.length * normalize_rows(self.direction))


def normalize_rows(vectors: Tensor) -> Tensor:
    """Normalize rows to length one; zero rows stay zero."""
    square = vectors.square().sum(1, keepdim=True)
    return vectors / torch.where(square > 0, square, 1).sqrt()


class MakeCosine:
    """Make cosine classifiers. Default scale, from the authors: 2 for up to 200 classes, 10 for more."""

    def __init__(self, scale: float | None) -> None:
        self.scale = scale

    def __call__(self, features: int, outputs: int, generator: torch.Generator | None = None) -> nn.Module:
        scale = self.scale or (2.0 if outputs <= MANY_CLASSES else 10.0)
        return CosineClassifier(features, outputs, scale, generator)


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
    """Train a classifier on fixed features by SGD; return it with `requires_grad=False`."""
    parameters = list(classifier.parameters())
    velocities: list[Tensor] = []
    with torch.enable_grad(), torch.autocast(features.device.type, enabled=False):
        for _ in range(epochs):
            order = to_device(torch.randperm(len(features), generator=generator, device="cpu"), features.device)
            for chosen in torch.split(order, batch):
                value = loss(classifier(features[chosen]), targets[chosen])
                gradients = torch.autograd.grad(value, parameters)
                with torch.no_grad():  # not `torch.optim`: on a problem this small it doubles the time
                    steps = [g.add(p, alpha=WEIGHT_DECAY) for g, p in zip(gradients, parameters, strict=True)]
                    # The first velocity is the first gradient without dampening, as in `torch.optim.SGD`.
                    velocities = velocities or [step * (DAMPENING / MOMENTUM) for step in steps]
                    for parameter, velocity, step in zip(parameters, velocities, steps, strict=True):
                        velocity.mul_(MOMENTUM).add_(step, alpha=1 - DAMPENING)
                        parameter.sub_(velocity, alpha=lr)
    return classifier.requires_grad_(False)
