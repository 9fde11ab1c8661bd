"""Few-shot tasks drawn from a labelled `torch.utils.data.Dataset`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from gradhomog.dataset_labels import Labels, read_labels
from gradhomog.errors import DataError, OptionError
from gradhomog.tasks import Task, classification_task, draw_examples


class TaskDataset(Dataset[Task]):
    """N-way K-shot tasks of a labelled data set: item k is a function of the seed and k alone.

    Task k has N classes c_1, ..., c_N, uniform without replacement from `classes`, in random order; class c_i has label
    i − 1. Of each class K + Q different examples are drawn, uniform without replacement: the first K are its support
    set, the other Q its query set. All is drawn by a generator seeded with (seed, k).

    A `Dataset` of its own, so that `torch.utils.data.DataLoader` loads tasks in parallel. Any worker makes any task:
    their number changes nothing. `TaskBatch.stack` collates, and tasks and batches pin their memory.

    Args:
        dataset: map-style; its items are inputs, or tuples whose first entry is the input: a tensor or array, of one
            shape for all examples. Transforms that draw from PyTorch's CPU generator are reproducible as well; those
            that draw from `random` or `numpy.random` are not.
        ways, shots, queries: N, K and Q above, each at least 1.
        length: number of tasks, `len` of this data set. They are drawn when they are asked for, so that a large number
            costs nothing.
        seed: 0 .. 2**32 − 1. Training, validation and test need different classes, not different seeds.
        labels: integers `[examples]`, the class of each example. By default `dataset.targets`, else `dataset.labels`;
            of a `Subset` or `ConcatDataset` those of its parts, of a `TensorDataset` its second tensor. No example is
            loaded for it.
        classes: the labels of the classes to draw from, e.g. those for training. By default all.
        domain: the name of the domain, `Task.domain`.

    Attributes:
        classes: the labels that tasks are drawn from, as given or in ascending order. `Task.classes` are positions in
            it, 0 .. `class_count` − 1, for learners that classify all training classes at once (`baseline`).
        class_count: their number.

    Raises:
        OptionError: a number is out of range. DataError: labels are missing, not integers or not one per example; the
            classes are too few, or one of them has fewer than `shots + queries` examples; an item is no tensor.

    Cost: of a task, `ways * (shots + queries)` items of `dataset`. Memory: one int64 per example; no item is kept.

    The name is learn2learn's, whose `TaskDataset` composes `NWays`, `KShots` and `RemapLabels`; Torchmeta calls it
    `CombinationMetaDataset` with `ClassSplitter`. Here support and query sets are separate from the start.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from gradhomog import TaskBatch, TaskDataset
    >>> images = TensorDataset(torch.rand(60, 1, 8, 8), torch.arange(60) % 6)
    >>> train = TaskDataset(images, ways=3, shots=1, queries=4, length=1000, classes=[0, 1, 2, 3])
    >>> train[7].query_x.shape, train[7].query_y.tolist()
    (torch.Size([12, 1, 8, 8]), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    >>> batch = next(iter(DataLoader(train, batch_size=4, collate_fn=TaskBatch.stack)))
    >>> batch.support_x.shape
    torch.Size([4, 3, 1, 8, 8])
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        ways: int,
        shots: int,
        queries: int,
        length: int,
        seed: int = 0,
        labels: Labels | None = None,
        classes: Sequence[int] | None = None,
        domain: str = "",
    ) -> None:
        for name, value in (("ways", ways), ("shots", shots), ("queries", queries), ("length", length)):
            _check_integer(name, value, 1)
        _check_integer("seed", seed, 0, 2**32 - 1)
        self.dataset, self.ways, self.shots, self.queries = dataset, ways, shots, queries
        self.length, self.seed, self.domain = length, seed, domain
        found = read_labels(dataset, labels)
        # Grouped by class: the examples of the class at position p are _examples[_starts[p] :][: _counts[p]].
        self._examples = np.argsort(found, kind="stable")
        self.classes, self._starts, self._counts = _select(found[self._examples], classes)
        self._check_classes()

    @property
    def class_count(self) -> int:
        """The number of classes that tasks are drawn from."""
        return len(self.classes)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Task:
        index = operator.index(index)
        if not 0 <= index < self.length:
            raise IndexError(f"`index` must be in 0..{self.length - 1}, as `length` is {self.length}; got {index}.")
        # Named, as `default_rng` may become another generator one day.
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, int(index)])))
        drawn, within = draw_examples(random, self._counts, ways=self.ways, size=self.shots + self.queries)
        examples = self._examples[self._starts[drawn][:, None] + within]
        with torch.random.fork_rng(devices=[]):  # transforms draw from the generator of the process
            torch.default_generator.manual_seed(int(random.integers(2**63)))
            support_x, query_x = self._load(examples[:, : self.shots]), self._load(examples[:, self.shots :])
        return classification_task(support_x, query_x, self.domain, drawn)

    def _load(self, examples: NDArray[np.int64]) -> Tensor:
        """The inputs of examples, row by row, `[examples, *input]`."""
        inputs = [self._input(example) for example in examples.flatten().tolist()]
        for example, one in zip(examples.flat, inputs, strict=True):
            if one.shape != inputs[0].shape:
                raise DataError(
                    f"inputs of `dataset` must have one shape; example {examples.flat[0]} has "
                    f"{tuple(inputs[0].shape)} and example {example} {tuple(one.shape)}. Resize them in its transform."
                )
        return torch.stack(inputs)

    def _input(self, example: int) -> Tensor:
        item = self.dataset[example]
        value = item[0] if isinstance(item, (tuple, list)) and item else item
        value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        if not isinstance(value, Tensor):
            raise DataError(
                f"example {example} of `dataset` must be a tensor or an array, or a tuple that begins with one; got "
                f"{type(value).__name__}. Convert it in its transform."
            )
        return value

    def _check_classes(self) -> None:
        if self.class_count < self.ways:
            raise DataError(
                f"{self.ways}-way tasks need {self.ways} classes; found {self.class_count}. Ask for fewer ways, or "
                "give more `classes`."
            )
        needed = self.shots + self.queries
        few = np.flatnonzero(self._counts < needed)
        if few.size:
            others = f" and {few.size - 1} more have too few" if few.size > 1 else ""
            raise DataError(
                f"tasks of {self.shots} shots and {self.queries} queries need {needed} examples of every class; class "
                f"{self.classes[few[0]]} has {self._counts[few[0]]}{others}. Ask for fewer shots or queries, or leave "
                f"such classes out of `classes`: {self.class_count - few.size} of {self.class_count} have enough."
            )


def _select(
    ordered: NDArray[np.int64], classes: Sequence[int] | None
) -> tuple[tuple[int, ...], NDArray[np.int64], NDArray[np.int64]]:
    """The classes, and where in the ordered labels the examples of each begin, and how many there are."""
    present, starts, counts = np.unique(ordered, return_index=True, return_counts=True)
    if classes is None:
        if len(present) and present[0] < 0:
            raise DataError(
                f"`labels` must be >= 0; found {present[0]} for {counts[0]} examples. Give the `classes` to draw from "
                "if such examples have no class."
            )
        return tuple(present.tolist()), starts, counts
    if isinstance(classes, str) or not isinstance(classes, Iterable) or not all(map(_is_integer, classes)):
        raise DataError(
            f"`classes` must be a sequence of integers, labels of the classes to draw from; got {classes!r}."
        )
    wanted, known = tuple(int(label) for label in classes), set(present.tolist())
    if len(set(wanted)) < len(wanted):
        raise DataError(f"`classes` must not repeat a label; got {len(wanted)} of which {len(set(wanted))} differ.")
    if missing := [label for label in wanted if label not in known]:
        raise DataError(
            f"`classes` must be among the labels; {missing[0]} is not ({len(missing)} in all). The labels are "
            f"{present[0]}..{present[-1]}, {len(present)} different."
            if len(present)
            else "`dataset` has no examples, so no `classes`."
        )
    positions = np.searchsorted(present, wanted)
    return wanted, starts[positions], counts[positions]


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_integer(name: str, value: object, low: int, high: int | None = None) -> None:
    if not _is_integer(value) or value < low or (high is not None and value > high):
        raise OptionError(
            f"`{name}` must be an integer {f'>= {low}' if high is None else f'in {low}..{high}'}; got {value!r}."
        )
