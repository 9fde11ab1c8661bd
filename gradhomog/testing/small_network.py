"""A small smooth network, and few-shot tasks in float64 for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradhomog.learners.tasks import Task, TaskBatch

WAYS, SIDE = 3, 6


def network(seed: int = 0, outputs: int = WAYS, norm: bool = False) -> tuple[nn.Module, nn.Module]:
    """An encoder of two convolutions and a linear head. It is smooth, so finite differences are accurate.

    With `norm`, batch normalization follows each convolution, and there are five features instead of four: no plugin
    may rely on their number. The global generator is not changed.
    """
    features = 4 + norm
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), *([nn.BatchNorm2d(3)] * norm), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(3, features, 3, padding=1), *([nn.BatchNorm2d(features)] * norm), nn.Tanh(), nn.AvgPool2d(3),
            nn.Flatten(),
        )  # fmt: skip
        head = nn.Linear(features, outputs)
    return encoder.double(), head.double()


def task(seed: int, domain: str = "", shots: int = 2, queries: int = 2, targets: int | None = None) -> Task:
    """A task of images `[n, 1, 6, 6]` of three classes: one centre per class, plus noise; the seed sets the scale.

    With `targets`, a regression task with that number of targets per image.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(WAYS, 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
    size = 0.5 + torch.rand((), generator=generator, dtype=torch.float64)
    parts: list[Tensor] = []
    for count in (shots, queries):
        classes = torch.arange(WAYS).repeat(count)
        noise = torch.randn(len(classes), 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
        images = size * (centres[classes] + 0.5 * noise)
        parts += [images, classes if targets is None else _regression_targets(images, targets)]
    return Task(parts[0], parts[1], parts[2], parts[3], domain)


def _regression_targets(images: Tensor, count: int) -> Tensor:
    return torch.sin(images.flatten(1)[:, :count] + images.mean(dim=(1, 2, 3))[:, None])


def batch(seed: int = 0, tasks: int = 3) -> TaskBatch:
    """Different tasks, each of another domain."""
    return TaskBatch.stack([task(100 * seed + index, f"domain {index}") for index in range(tasks)])
