"""A small network and few-shot tasks, float64, on which installed learners are run with what is checked."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradhomog import api
from gradhomog.specs import LearnerSpec
from gradhomog.tasks import Task, TaskBatch

if TYPE_CHECKING:
    from gradhomog.learners import Learner
    from gradhomog.registry import Registry

WAYS, SIDE = 3, 6


def network(seed: int = 0, outputs: int = WAYS, norm: bool = False) -> tuple[nn.Module, nn.Module]:
    """An encoder with two convolutions and a linear head; smooth, so that finite differences are exact enough.

    With `norm`, each convolution is followed by batch normalization. The global generator is left as it was.
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
    """Images `[n, 1, 6, 6]` of three classes: noise around a picture each, its inputs' size different by seed.

    With `targets`, so many numbers are to be told of each image, in place of its class.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(WAYS, 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
    size = 0.5 + torch.rand((), generator=generator, dtype=torch.float64)
    parts: list[Tensor] = []
    for count in (shots, queries):
        classes = torch.arange(WAYS).repeat(count)
        noise = torch.randn(len(classes), 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
        images = size * (centres[classes] + 0.5 * noise)
        parts += [images, classes if targets is None else _numbers(images, targets)]
    return Task(parts[0], parts[1], parts[2], parts[3], domain)


def _numbers(images: Tensor, count: int) -> Tensor:
    """A smooth function of each image, `[n, count]`."""
    return torch.sin(images.flatten(1)[:, :count] + images.mean(dim=(1, 2, 3))[:, None])


class Arena:
    """The learners of a registry on that network."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    @functools.cached_property
    def learners(self) -> tuple[str, ...]:
        """Names of the learners that can be run here, those first whose rows are exact derivatives."""
        usable: list[tuple[bool, str]] = []
        for name in self.registry.names("learners"):
            try:
                _, spec = self.registry.load("learners", name)
                self.learner(name, None).rows(self.batch(tasks=1))
            except Exception:  # a learner that does not load, or needs another network, says so in its own kit
                continue
            usable.append((not (isinstance(spec, LearnerSpec) and "exact_rows" in spec.traits), name))
        return tuple(name for _, name in sorted(usable))

    def exact(self, name: str) -> bool:
        """Whether a learner claims that its rows are derivatives."""
        spec = self.registry.load("learners", name)[1]
        return isinstance(spec, LearnerSpec) and "exact_rows" in spec.traits

    def learner(self, name: str, homogenizers: Any, seed: int = 0) -> Learner:
        """A learner on a network of its own, initialised by seed, with all that it learns beside the network.

        The global generator is left as it was.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return api.learner(name, *network(seed), homogenizers=homogenizers, registry=self.registry)

    def batch(self, seed: int = 0, tasks: int = 3) -> TaskBatch:
        """Different tasks of different domains."""
        return TaskBatch.stack([task(100 * seed + index, f"domain {index}") for index in range(tasks)])

    def same(self, seed: int = 0, tasks: int = 3) -> TaskBatch:
        """One task as often as asked, each time from another domain."""
        return TaskBatch.stack([task(seed, f"domain {index}") for index in range(tasks)])
