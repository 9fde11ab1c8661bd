"""A small smooth network, few-shot tasks in float64, and the installed learners that can train on them."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.learners.learner import Learner, learner
from gradhomog.learners.tasks import Task, TaskBatch
from gradhomog.registry import Registry
from gradhomog.registry.specs import LearnerSpec

WAYS, SIDE = 3, 6


def network(seed: int = 0, outputs: int = WAYS, norm: bool = False) -> tuple[nn.Module, nn.Module]:
    """An encoder of two convolutions and a linear head. It is smooth, so finite differences are accurate.

    With `norm`, batch normalization follows each convolution. The global generator is not changed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), *([nn.BatchNorm2d(3)] * norm), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(3, 4, 3, padding=1), *([nn.BatchNorm2d(4)] * norm), nn.Tanh(), nn.AvgPool2d(3), nn.Flatten(),
        )  # fmt: skip
        head = nn.Linear(4, outputs)
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


def repeated_task(seed: int = 0, tasks: int = 3) -> TaskBatch:
    """The same task several times, each time with another domain."""
    return TaskBatch.stack([task(seed, f"domain {index}") for index in range(tasks)])


class InstalledLearners:
    """Learners of a registry, made with the small network."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the learners that can train on the small network, those with exact rows first."""
        return _trainable_learners(self.registry, self.registry.names("learners"))

    def exact(self, name: str) -> bool:
        """True if the learner claims the trait `exact_rows`: its rows are derivatives."""
        spec = self.registry.load("learners", name)[1]
        return isinstance(spec, LearnerSpec) and "exact_rows" in spec.traits

    def make(self, name: str, homogenizers: Any, seed: int = 0) -> Learner:
        """Make a learner with a fresh network; all parameters are initialized from the seed.

        The global generator is not changed.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return learner(name, *network(seed), homogenizers=homogenizers, registry=self.registry)


@functools.lru_cache(maxsize=8)  # one list for all homogenizers checked in this process
def _trainable_learners(registry: Registry, names: tuple[str, ...]) -> tuple[str, ...]:
    learners, usable = InstalledLearners(registry), []
    for name in names:
        try:
            learners.make(name, None).rows(batch(tasks=1))
        except Exception:  # its own checks report a learner that does not load or needs another network
            continue
        usable.append((not learners.exact(name), name))
    return tuple(name for _, name in sorted(usable))
