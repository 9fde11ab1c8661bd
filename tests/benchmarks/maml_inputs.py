"""Networks and batches of tasks for the benchmark of MAML."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradhomog.experiments import models
from gradhomog.learners.tasks import TaskBatch

FORMS = ("tasks x channels x pixels x filters (conv4)", "tasks x hidden units (sinusoids)")
WAYS, SHOTS, QUERIES = 5, 5, 15
POINTS = 10
"""Number of points of a sinusoid, in the support set and in the query set each."""


@dataclass(frozen=True)
class Setting:
    """Tasks of one shape, and the network that is adapted to them.

    Images: 5 classes, 5 shots, 15 queries each; an image is a pattern of its class plus noise of the same scale (time
    and memory do not depend on the pixels). Sinusoids: as in Finn et al. 2017, 10 points, amplitude 0.1 to 5.

    Drawn in float32, so that all dtypes have the same numbers.
    """

    shape: Sequence[int]
    dtype: torch.dtype = torch.float32

    @property
    def images(self) -> bool:
        return len(self.shape) == 4

    @property
    def title(self) -> str:
        if not self.images:
            tasks, width = self.shape
            return f"mlp, two layers of {width}, {tasks} sinusoids with {POINTS} points"
        tasks, channels, size, width = self.shape
        return (
            f"conv4, {width} filters, inputs {(channels, size, size)}, {tasks} tasks with {WAYS} ways, {SHOTS} shots, "
            f"{QUERIES} queries"
        )

    def network(self) -> nn.Sequential:
        """Encoder and head, with the same parameters in every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if self.images:
                _, channels, size, width = self.shape
                encoder, head = models.build("conv4", (channels, size, size), WAYS, width)
            else:
                encoder, head = models.build("mlp", (1,), 1, self.shape[1])
        return nn.Sequential(OrderedDict(encoder=encoder, head=head)).to(self.dtype).train()

    def batch(self, number: int) -> TaskBatch:
        """The tasks of a round."""
        random = torch.Generator().manual_seed(number)
        parts = self._images(random) if self.images else self._sinusoids(random)
        support_x, support_y, query_x, query_y = (p.to(self.dtype) if p.is_floating_point() else p for p in parts)
        return TaskBatch(support_x, support_y, query_x, query_y)

    def _images(self, random: torch.Generator) -> tuple[Tensor, ...]:
        tasks, channels, size, _ = self.shape
        picture = (channels, size, size)
        classes = torch.randn(tasks, WAYS, 1, *picture, generator=random)
        found: list[Tensor] = []
        for each in (SHOTS, QUERIES):
            noisy = classes + torch.randn(tasks, WAYS, each, *picture, generator=random)
            targets = torch.arange(WAYS).repeat_interleave(each).expand(tasks, -1).contiguous()
            found += [noisy.flatten(1, 2), targets]
        return tuple(found)

    def _sinusoids(self, random: torch.Generator) -> tuple[Tensor, ...]:
        tasks = self.shape[0]
        amplitudes = 0.1 + 4.9 * torch.rand(tasks, 1, 1, generator=random)
        phases = torch.pi * torch.rand(tasks, 1, 1, generator=random)
        found: list[Tensor] = []
        for _ in ("support", "query"):
            x = 10 * torch.rand(tasks, POINTS, 1, generator=random) - 5
            found += [x, amplitudes * torch.sin(x - phases)]
        return tuple(found)


def to_channels_last(batch: TaskBatch) -> TaskBatch:
    """The same images in the memory format `torch.channels_last`."""

    def convert(x: Tensor) -> Tensor:
        return x.flatten(0, 1).contiguous(memory_format=torch.channels_last).view(x.shape)

    return TaskBatch(convert(batch.support_x), batch.support_y, convert(batch.query_x), batch.query_y)
