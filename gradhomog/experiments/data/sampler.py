"""The stream of tasks that a learner is trained or judged on: every task a pure function of its index."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from gradhomog.domains import Domain, Split
from gradhomog.errors import DataError, OptionError
from gradhomog.experiments.data.seeding import generator
from gradhomog.tasks import Task, TaskBatch

Setting = Literal["weak", "strong"]

_SPLIT_CODES = {"train": 0, "val": 1, "test": 2, "all": 3}
# First word of every seed. Not 0, and two of them: SeedSequence pads with zeros, so [seed, 0, 7] would be
# [seed, 0, 7, 0], and tasks would share their draws with the choice of a batch's domains.
_TASK, _BATCH = 1, 2
_LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601


class EpisodeStream:
    """Tasks and batches of tasks by index, drawn from several domains.

    Task i depends on the seed, the split, i, the domains in their order, and the numbers; on nothing else. Any worker
    can make any of them, and a run that resumes at batch b sees what it would have seen.

    `classes` of tasks number those of the split over all domains, 0 .. `class_count` - 1, if the domains tell theirs.

    Args:
        domains: at least one, of one kind (classification, or regression with one number of outputs), one input size
            and different names.
        split: which classes or parameters, see `Domain`; `"all"` for domains that nothing is trained on.
        ways, shots, queries: classes of a task, and support and query inputs of each; see `Domain.sample`.
        tasks: tasks of a batch.
        setting: how a batch uses the domains. `"strong"` (heterogeneity): its tasks come from pairwise different
            domains; of fewer domains than tasks, each is used equally often, or once more than another. `"weak"`: all
            tasks of a batch come from one domain. Which, and in which order, is drawn anew for every batch.
        seed: 0 .. 2**32 - 1.
        channels: 1 or 3 converts images, by luminance or repetition; None leaves them as the domains give them.

    Raises:
        OptionError: a number is out of range. DataError: the domains do not agree, or one cannot serve such tasks.
    """

    def __init__(
        self,
        domains: Sequence[Domain],
        *,
        split: Split,
        ways: int,
        shots: int,
        queries: int,
        tasks: int,
        setting: Setting,
        seed: int,
        channels: int | None = None,
    ) -> None:
        self.domains = tuple(domains)
        self.split, self.setting, self.seed, self.channels = split, setting, seed, channels
        self.ways, self.shots, self.queries, self.tasks = ways, shots, queries, tasks
        _check_numbers(self)
        _check_agreement(self.domains, channels)
        for domain in self.domains:
            domain.check(split, ways=ways, shots=shots, queries=queries)
        shape = self.domains[0].input_shape
        self.input_shape = shape if channels is None else (channels, *shape[1:])
        self.outputs = self.domains[0].outputs

    def batch(self, index: int) -> TaskBatch:
        """Batch b: the tasks b*tasks .. b*tasks + tasks - 1, from the domains that the setting and the seed give."""
        chosen = self._domains_of_batch(_check_index(index))
        return TaskBatch.stack([self._draw(index * self.tasks + slot, domain) for slot, domain in enumerate(chosen)])

    def task(self, index: int) -> Task:
        """Task i from domain i % len(domains): for evaluation, where every domain has an equal share."""
        return self._draw(_check_index(index), self.domains[index % len(self.domains)])

    def batches(self, start: int = 0) -> Iterator[TaskBatch]:
        """All batches from `start` on, without end."""
        return (self.batch(index) for index in itertools.count(start))

    @property
    def class_count(self) -> int:
        """How many classes the domains tell of the split, all together."""
        return sum(map(len, self._class_numbers.values()))

    @functools.cached_property
    def _class_numbers(self) -> dict[str, dict[int, int]]:
        """By domain, from its own number of a class to that among all."""
        numbers, count = {}, itertools.count()
        for domain in self.domains:
            numbers[domain.name] = {own: next(count) for own in domain.classes(self.split)}
        return numbers

    def _domains_of_batch(self, index: int) -> list[Domain]:
        random = self._random(_BATCH, index)
        if self.setting == "weak":
            return [self.domains[random.integers(len(self.domains))]] * self.tasks
        order = random.permutation(len(self.domains))
        # Cycling a permutation: each domain floor(tasks / domains) times, and the first ones once more.
        return [self.domains[which] for which in random.permutation(np.resize(order, self.tasks))]

    def _draw(self, index: int, domain: Domain) -> Task:
        task = domain.sample(
            self.split, self._random(_TASK, index), ways=self.ways, shots=self.shots, queries=self.queries
        )
        if task.classes is not None:
            task = dataclasses.replace(task, classes=self._renumber(domain, task.classes))
        if self.channels is None or domain.input_shape[0] == self.channels:
            return task
        return dataclasses.replace(
            task,
            support_x=_convert(task.support_x, self.channels),
            query_x=_convert(task.query_x, self.channels),
        )

    def _renumber(self, domain: Domain, classes: Tensor) -> Tensor | None:
        numbers = self._class_numbers[domain.name]
        if not numbers:
            return None  # it hands on the tasks of another domain, and no list of classes
        if unknown := sorted(set(classes.tolist()) - set(numbers)):
            raise DataError(
                f"domain {domain.name!r}: `classes` of a task must be among the {len(numbers)} of "
                f"`classes({self.split!r})`; found {unknown}."
            )
        return torch.tensor([numbers[own] for own in classes.tolist()])

    def _random(self, purpose: int, index: int) -> np.random.Generator:
        return generator(purpose, self.seed, _SPLIT_CODES[self.split], index)


def _convert(images: Tensor, channels: int) -> Tensor:
    """Between grey and RGB, `[n, 1 or 3, height, width]` in [-1, 1]."""
    if channels == 3:
        return images.repeat(1, 3, 1, 1)
    weights = torch.tensor(_LUMINANCE).reshape(1, 3, 1, 1)
    return (images * weights).sum(dim=1, keepdim=True).clamp(-1.0, 1.0)  # the weights sum to 1 but for rounding


def _check_index(index: int) -> int:
    if index < 0:
        raise OptionError(f"`index` must be >= 0; got {index}.")
    return index


def _check_numbers(stream: EpisodeStream) -> None:
    for name in ("shots", "queries", "tasks", "ways"):
        value = getattr(stream, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"`{name}` must be an integer >= 1; got {value!r}.")
    if isinstance(stream.seed, bool) or not isinstance(stream.seed, int) or not 0 <= stream.seed < 2**32:
        raise OptionError(f"`seed` must be an integer in 0..{2**32 - 1}; got {stream.seed!r}.")
    for name, allowed in (("split", tuple(_SPLIT_CODES)), ("setting", get_args(Setting)), ("channels", (None, 1, 3))):
        if (value := getattr(stream, name)) not in allowed:
            raise OptionError(f"`{name}` must be one of {', '.join(map(str, allowed))}; got {value!r}.")


def _check_agreement(domains: tuple[Domain, ...], channels: int | None) -> None:
    if not domains:
        raise DataError("a stream of tasks needs at least one domain; got none.")
    if len(names := {domain.name for domain in domains}) < len(domains):
        raise DataError(
            f"domains must have different names; got {', '.join(domain.name for domain in domains)} "
            f"({len(names)} different)."
        )
    first = domains[0]
    for domain in domains:
        if domain.outputs != first.outputs:
            raise DataError(
                f"the domains of a stream must be of one kind; {first.name} is {_describe_kind(first)} and {domain.name} is "
                f"{_describe_kind(domain)}."
            )
        if channels is not None and len(domain.input_shape) != 3:
            raise DataError(
                f"`channels={channels}` converts images; domain {domain.name} has inputs of shape {domain.input_shape}."
            )
        kept = slice(None) if channels is None else slice(1, None)
        if domain.input_shape[kept] != first.input_shape[kept]:
            advice = "Make them with one `size`"
            if domain.input_shape[1:] == first.input_shape[1:]:
                advice = "Give `channels=1` or `channels=3`"
            raise DataError(
                f"the domains of a stream must have inputs of one shape; {first.name} has {first.input_shape} and "
                f"{domain.name} has {domain.input_shape}. {advice}."
            )


def _describe_kind(domain: Domain) -> str:
    return "classification" if domain.outputs is None else f"regression with {domain.outputs} outputs"
