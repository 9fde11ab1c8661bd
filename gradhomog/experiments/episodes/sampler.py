"""Streams of tasks for training and evaluation, in which every task is a pure function of its index."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gradhomog.errors import DataError, OptionError
from gradhomog.experiments.episodes.augmentation import to_gray
from gradhomog.learners.domains import Domain, Split
from gradhomog.learners.tasks import Task, TaskBatch
from gradhomog.registry.options import ValidatedConstructor


def generator(*words: int) -> np.random.Generator:
    """Return a generator seeded by `words`, integers >= 0. Trailing zeros do not change the seed."""
    # PCG64 is explicit, because `default_rng` may use another generator in a later version of NumPy.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


Augmentation = Callable[[Tensor, torch.Generator], Tensor]
"""A function of images `[n, channels, height, width]` and a generator on the CPU."""

Setting = Literal["weak", "strong"]

_SPLIT_CODES = {"train": 0, "val": 1, "test": 2, "all": 3}
# First word of every seed: two different numbers, both nonzero. SeedSequence pads with zeros, so that [seed, 0, 7]
# would equal [seed, 0, 7, 0], and tasks would share random numbers with the choice of a batch's domains.
_TASK, _BATCH, _AUGMENTATION = 1, 2, 3


class EpisodeStream(ValidatedConstructor):
    """Tasks and batches of tasks by index, drawn from several domains.

    Task i depends only on i and on the arguments below, the order of the domains included. Any worker can create any
    task, and a run that resumes at batch b gets the same batches as an uninterrupted run.

    `classes` of tasks number the classes of the split over all domains, 0 .. `class_count` - 1, if the domains list
    their classes.

    Args:
        domains: at least one, all of the same kind (classification, or regression with the same number of outputs), of
            the same input size, and with different names.
        split: the classes or parameters to draw from, see `Domain`; `"all"` for domains that are not trained on.
        ways, shots, queries: classes per task, and support and query inputs per class; see `Domain.sample`.
        tasks: tasks per batch.
        setting: how a batch uses the domains. `"strong"` (heterogeneity): its tasks come from pairwise different
            domains; with fewer domains than tasks, each domain is used equally often, or once more than another.
            `"weak"`: all tasks of a batch come from one domain. Domains and their order are drawn for every batch.
        seed: 0 .. 2**32 - 1.
        channels: 1 or 3 converts images, by luminance or repetition; None keeps the channels of the domains.
        augmentation: applied to the support and query images of every task, with a generator seeded by the task's
            index; None: images are not changed. Requires domains of images.

    Raises:
        OptionError: a number is out of range. DataError: the domains differ in kind or input size, share a name, or
            have too few classes or images for such tasks.
    """

    def __init__(
        self,
        domains: Sequence[Domain],
        *,
        split: Split,
        ways: Annotated[int, Ge(1)],
        shots: Annotated[int, Ge(1)],
        queries: Annotated[int, Ge(1)],
        tasks: Annotated[int, Ge(1)],
        setting: Setting,
        seed: Annotated[int, Interval(ge=0, lt=2**32)],
        channels: Literal[1, 3] | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.domains = tuple(domains)
        self.split, self.setting, self.seed, self.channels = split, setting, seed, channels
        self.augmentation = augmentation
        self.ways, self.shots, self.queries, self.tasks = ways, shots, queries, tasks
        _check_agreement(self.domains, channels, augmentation)
        for domain in self.domains:
            domain.check(split, ways=ways, shots=shots, queries=queries)
        shape = self.domains[0].input_shape
        self.input_shape = shape if channels is None else (channels, *shape[1:])
        self.outputs = self.domains[0].outputs

    def batch(self, index: int) -> TaskBatch:
        """Return batch b: the tasks b*tasks .. b*tasks + tasks - 1, from domains chosen by setting and seed."""
        domains = self._domains_of_batch(index)
        return TaskBatch.stack([self._draw(index * self.tasks + slot, domain) for slot, domain in enumerate(domains)])

    def task(self, index: int) -> Task:
        """Return task i, from domain i % len(domains), for evaluation: every domain has an equal share."""
        return self._draw(index, self.domains[index % len(self.domains)])

    def batches(self, start: int = 0) -> Iterator[TaskBatch]:
        """Return an endless iterator over the batches from `start` on."""
        return (self.batch(index) for index in itertools.count(start))

    @property
    def class_count(self) -> int:
        """Number of classes of the split that the domains list, all domains together."""
        return sum(map(len, self._class_numbers.values()))

    @functools.cached_property
    def _class_numbers(self) -> dict[str, dict[int, int]]:
        """Map the name of a domain to a map from its class numbers to the numbers over all domains."""
        numbers, count = {}, itertools.count()
        for domain in self.domains:
            numbers[domain.name] = {number: next(count) for number in domain.classes(self.split)}
        return numbers

    def _domains_of_batch(self, index: int) -> list[Domain]:
        random = self._generator(_BATCH, index)
        if self.setting == "weak":
            return [self.domains[random.integers(len(self.domains))]] * self.tasks
        order = random.permutation(len(self.domains))
        # Repeat a permutation: each domain occurs floor(tasks / domains) times, and the first ones once more.
        return [self.domains[position] for position in random.permutation(np.resize(order, self.tasks))]

    def _draw(self, index: int, domain: Domain) -> Task:
        task = domain.sample(
            self.split, self._generator(_TASK, index), ways=self.ways, shots=self.shots, queries=self.queries
        )
        if task.classes is not None:
            task = dataclasses.replace(task, classes=self._renumber(domain, task.classes))
        if self.channels is not None and domain.input_shape[0] != self.channels:
            task = dataclasses.replace(
                task,
                support_x=_convert_channels(task.support_x, self.channels),
                query_x=_convert_channels(task.query_x, self.channels),
            )
        if self.augmentation is None:
            return task
        random = torch.Generator().manual_seed(int(self._generator(_AUGMENTATION, index).integers(2**63)))
        support_x = self.augmentation(task.support_x, random)
        return dataclasses.replace(task, support_x=support_x, query_x=self.augmentation(task.query_x, random))

    def _renumber(self, domain: Domain, classes: Tensor) -> Tensor | None:
        numbers = self._class_numbers[domain.name]
        if not numbers:
            return None  # a domain that forwards tasks of another domain, without a list of classes
        if unknown := sorted(set(classes.tolist()) - set(numbers)):
            raise DataError(
                f"domain {domain.name!r}: `classes` of a task must be among the {len(numbers)} of "
                f"`classes({self.split!r})`; found {unknown}."
            )
        return torch.tensor([numbers[number] for number in classes.tolist()])

    def _generator(self, purpose: int, index: int) -> np.random.Generator:
        return generator(purpose, self.seed, _SPLIT_CODES[self.split], index)


def _convert_channels(images: Tensor, channels: int) -> Tensor:
    """Convert between grey and RGB, `[n, 1 or 3, height, width]` in [-1, 1]."""
    if channels == 3:
        return images.repeat(1, 3, 1, 1)
    return to_gray(images)


def _check_agreement(domains: tuple[Domain, ...], channels: int | None, augmentation: Augmentation | None) -> None:
    if len(names := {domain.name for domain in domains}) < len(domains):
        raise DataError(
            f"domains must have different names; got {', '.join(domain.name for domain in domains)} "
            f"({len(names)} different)."
        )
    first = domains[0]
    for domain in domains:
        if channels is not None and len(domain.input_shape) != 3:
            raise DataError(
                f"`channels={channels}` converts images; domain {domain.name} has inputs of shape {domain.input_shape}."
            )
        compared = slice(None) if channels is None else slice(1, None)
        if domain.input_shape[compared] != first.input_shape[compared]:
            advice = "Create them with the same `size`"
            if domain.input_shape[1:] == first.input_shape[1:]:
                advice = "Set `channels=1` or `channels=3`"
            raise DataError(
                f"the domains of a stream must have inputs of the same shape; {first.name} has {first.input_shape} "
                f"and {domain.name} has {domain.input_shape}. {advice}."
            )
    if augmentation is not None and len(first.input_shape) != 3:
        raise OptionError(
            f"`augmentation` must be None for inputs that are not images; domain {first.name} has inputs of shape "
            f"{first.input_shape}."
        )
