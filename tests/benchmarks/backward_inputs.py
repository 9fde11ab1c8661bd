"""Networks with several heads, and their batches, for the benchmark of `backward`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import functional

from gradhomog.experiments import models

FORMS = ("tasks x inputs x hidden (mlp)", "tasks x channels x pixels x filters (conv4)")
VECTORS, IMAGES = 64, 25
"""Batch sizes."""
FEATURES = 128
"""Number of outputs of the mlp."""
GROUPS = 8
"""Number of groups of group normalization, if it divides the number of filters."""


@dataclass(frozen=True)
class Batch:
    """Inputs `[batch, ...]`, the same for all tasks, and targets `[tasks, batch, 1]`."""

    inputs: Tensor
    targets: Tensor


class Network(nn.Module):
    """An encoder, and a linear head with one output for each task."""

    def __init__(self, encoder: nn.Module, features: int, tasks: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleList(nn.Linear(features, 1) for _ in range(tasks))

    def losses(self, features: Tensor, batch: Batch) -> list[Tensor]:
        pairs = zip(self.heads, batch.targets, strict=True)
        return [functional.mse_loss(head(features), target) for head, target in pairs]


@dataclass(frozen=True)
class Setting:
    """A network of one shape and its batches; drawn in float32, so that all dtypes have the same numbers."""

    shape: Sequence[int]
    dtype: torch.dtype = torch.float32

    @property
    def images(self) -> bool:
        return len(self.shape) == 4

    @property
    def title(self) -> str:
        tasks, inputs, *sizes = self.shape
        heads = f"{tasks} head{'s' if tasks > 1 else ''}"
        if not self.images:
            return f"mlp {inputs}-{sizes[0]}-{sizes[0]}-{FEATURES}, {heads}, {VECTORS} vectors"
        return (
            f"conv4 with group normalization, {sizes[1]} filters, {heads}, {IMAGES} images {(inputs, *sizes[:1] * 2)}"
        )

    def network(self) -> Network:
        """A new network with the same parameters in every call."""
        tasks, inputs, *sizes = self.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if not self.images:
                hidden, last = models.build("mlp", (inputs,), FEATURES, sizes[0])
                return Network(nn.Sequential(hidden, last), FEATURES, tasks).to(self.dtype)
            pixels, filters = sizes
            convolutions, _ = models.build("conv4", (inputs, pixels, pixels), 1, filters)
            return Network(_with_group_norm(convolutions, filters), filters * (pixels // 16) ** 2, tasks).to(self.dtype)

    def batch(self, number: int) -> Batch:
        """The batch of a round."""
        tasks, inputs, *sizes = self.shape
        random = torch.Generator().manual_seed(number)
        example_shape = (inputs, sizes[0], sizes[0]) if self.images else (inputs,)
        count = IMAGES if self.images else VECTORS
        tensors = torch.randn(count, *example_shape, generator=random), torch.randn(tasks, count, 1, generator=random)
        return Batch(*(values.to(self.dtype) for values in tensors))


def _with_group_norm(encoder: nn.Module, filters: int) -> nn.Sequential:
    """Replace batch normalization, whose running statistics change in every step, by group normalization."""
    return nn.Sequential(
        *(
            nn.GroupNorm(gcd(GROUPS, filters), filters) if isinstance(layer, nn.BatchNorm2d) else layer
            for layer in encoder.children()
        )
    )
