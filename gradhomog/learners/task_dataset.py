"""Few-shot tasks drawn from a `torch.utils.data.Dataset`, whose labels are read without loading its examples."""

import operator
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Interval
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from gradhomog.errors import DataError
from gradhomog.learners.tasks import Task, classification_task, draw_examples
from gradhomog.registry.options import ValidatedConstructor, fits

Labels = Sequence[int] | NDArray[np.integer[Any]] | Tensor


class TaskDataset(ValidatedConstructor, Dataset[Task]):
    """N-way K-shot tasks of a labelled data set: item k is a function of the seed and k alone.

    Task k has N classes c_1, ..., c_N, uniform without replacement from those of `classes` with at least K + Q
    examples, in random order; class c_i has label i − 1. For each class, K + Q different examples are drawn, uniform
    without replacement: the first K are its support set, the other Q its query set. All draws use a generator seeded
    with (seed, k).

    Every epoch therefore has the same tasks. For new tasks in every step, set `length` to the tasks of the whole
    training, `steps * batch_size`, and iterate over the loader once; or make the data set with another `seed` for each
    epoch.

    It is a `Dataset`, so that `torch.utils.data.DataLoader` loads tasks in parallel. Tasks do not depend on the number
    of workers. `TaskBatch.stack` is the `collate_fn`; tasks and batches support pinned memory.

    Args:
        dataset: map-style; its items are inputs, or tuples whose first entry is the input: a tensor or array, with the
            same shape for all examples. Transforms that draw from PyTorch's CPU generator are reproducible as well;
            those that draw from `random` or `numpy.random` are not.
        ways, shots, queries: N, K and Q above, each at least 1.
        length: number of tasks, `len` of this data set. Tasks are drawn on access, so that a large number costs
            nothing.
        seed: 0 .. 2**32 − 1. Training, validation and test need different classes, not different seeds.
        labels: integers `[examples]`, the class of each example. By default `dataset.targets`, else `dataset.labels`;
            for a `Subset` or `ConcatDataset` those of its parts, for a `TensorDataset` its second tensor. Labels are
            read without loading examples.
        classes: the labels of the classes to draw from, e.g. those for training. By default all.
        domain: the name of the domain, `Task.domain`.

    Attributes:
        classes: the labels of all classes, in the order of the argument, or ascending, those with too few examples
            included. `Task.classes` are indices into it, 0 .. `class_count` − 1, for learners that classify all
            training classes at once (`baseline`).
        class_count: the number of these classes.

    Raises:
        OptionError: a number is out of range. DataError: labels are missing, not integers or not one per example;
            fewer than `ways` classes have `shots + queries` examples; an item is not a tensor.

    Cost of a task: `ways * (shots + queries)` items of `dataset`. Memory: one int64 per example; no item is kept.

    The name is that of learn2learn, whose `TaskDataset` composes `NWays`, `KShots` and `RemapLabels`. The counterpart
    in Torchmeta is `CombinationMetaDataset` with `ClassSplitter`. Here support and query sets are separate tensors.

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
        ways: Annotated[int, Ge(1)],
        shots: Annotated[int, Ge(1)],
        queries: Annotated[int, Ge(1)],
        length: Annotated[int, Ge(1)],
        seed: Annotated[int, Interval(ge=0, lt=2**32)] = 0,
        labels: Labels | None = None,
        classes: Iterable[int] | None = None,
        domain: str = "",
    ) -> None:
        self.dataset, self.ways, self.shots, self.queries = dataset, ways, shots, queries
        self.length, self.seed, self.domain = length, seed, domain
        found = _read_labels(dataset, labels)
        # Sorted by class: the examples of classes[p] are _examples[_starts[p] :][: _counts[p]].
        self._examples = np.argsort(found, kind="stable")
        self.classes, self._starts, self._counts = _select(found[self._examples], classes)
        self._eligible = np.flatnonzero(self._counts >= shots + queries)  # as in domains of images
        self._check_classes()

    @property
    def class_count(self) -> int:
        """The number of `classes`."""
        return len(self.classes)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Task:
        index = operator.index(index)
        if not 0 <= index < self.length:
            raise IndexError(f"`index` must be in 0..{self.length - 1}, as `length` is {self.length}; got {index}.")
        # Not `default_rng`: its generator may change in a later version of NumPy.
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, int(index)])))
        counts = self._counts[self._eligible]
        drawn, within = draw_examples(random, counts, ways=self.ways, size=self.shots + self.queries)
        drawn = self._eligible[drawn]
        examples = self._examples[self._starts[drawn][:, None] + within]
        with torch.random.fork_rng(devices=[]):  # transforms draw from the generator of the process
            torch.default_generator.manual_seed(int(random.integers(2**63)))
            support_x, query_x = self._load(examples[:, : self.shots]), self._load(examples[:, self.shots :])
        return classification_task(support_x, query_x, self.domain, drawn)

    def _load(self, examples: NDArray[np.int64]) -> Tensor:
        """Return the inputs of examples in row-major order, `[examples, *input]`."""
        inputs = [self._input(example) for example in examples.flatten().tolist()]
        for example, one in zip(examples.flat, inputs, strict=True):
            if one.shape != inputs[0].shape:
                raise DataError(
                    f"inputs of `dataset` must have the same shape; got {tuple(inputs[0].shape)} for example "
                    f"{examples.flat[0]} and {tuple(one.shape)} for example {example}. Resize them in its transform."
                )
        return torch.stack(inputs)

    def _input(self, example: int) -> Tensor:
        item = self.dataset[example]
        value = item[0] if isinstance(item, (tuple, list)) and item else item
        value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        if not isinstance(value, Tensor):
            raise DataError(
                f"example {example} of `dataset` must be a tensor or an array, or a tuple that starts with one; got "
                f"{type(value).__name__}. Convert it in its transform."
            )
        return value

    def _check_classes(self) -> None:
        if len(self._eligible) >= self.ways:
            return
        needed, found = self.shots + self.queries, f"{self.class_count} classes"
        if self.class_count:
            found += (
                f" of {self._counts.min()} to {self._counts.max()} examples, of which {len(self._eligible)} qualify"
            )
        fewer = "`ways`, or pass more `classes`" if self.class_count < self.ways else "`shots` or `queries`"
        raise DataError(
            f"{self.ways}-way tasks of {self.shots} shots and {self.queries} queries require {self.ways} classes of at "
            f"least {needed} examples; got {found}. Reduce {fewer}."
        )


def _select(
    ordered: NDArray[np.int64], classes: Iterable[int] | None
) -> tuple[tuple[int, ...], NDArray[np.int64], NDArray[np.int64]]:
    """Return the classes, the index of the first example of each in the sorted labels, and the number of examples."""
    present, starts, counts = np.unique(ordered, return_index=True, return_counts=True)
    if classes is None:
        if len(present) and present[0] < 0:
            raise DataError(
                f"`labels` must be >= 0; got {present[0]} for {counts[0]} examples. If such examples have no class, "
                "pass the `classes` to draw from."
            )
        return tuple(present.tolist()), starts, counts
    if isinstance(classes, str) or not isinstance(classes, Iterable) or not all(fits(label, int) for label in classes):
        raise DataError(
            f"`classes` must be a sequence of integers, labels of the classes to draw from; got {classes!r}."
        )
    wanted, known = tuple(int(label) for label in classes), set(present.tolist())
    if len(set(wanted)) < len(wanted):
        raise DataError(
            f"`classes` must not repeat a label; got {len(wanted)} labels, of which {len(set(wanted))} differ."
        )
    if missing := [label for label in wanted if label not in known]:
        raise DataError(
            f"`classes` must be among the labels; got {missing[0]}, which is not ({len(missing)} such classes). The "
            f"labels are {present[0]}..{present[-1]}, {len(present)} different ones."
            if len(present)
            else "`classes` must be among the labels, but `dataset` has no examples."
        )
    positions = np.searchsorted(present, wanted)
    return wanted, starts[positions], counts[positions]


def _read_labels(dataset: Dataset[Any], labels: Labels | None) -> NDArray[np.int64]:
    """Return `labels` as integers `[examples]`, or the labels of the data set; see `TaskDataset`.

    Raises:
        DataError: the labels are missing, are not integers, or are not one per example.
    """
    if isinstance(dataset, IterableDataset):
        raise DataError(
            f"`dataset` must be a map-style dataset, because examples are drawn by index; got {type(dataset).__name__}"
            ", an IterableDataset. Store its examples, for example in a list, and pass `labels=`."
        )
    found = _stored_labels(dataset) if labels is None else _convert_labels("labels", labels)
    size = len(dataset)  # type: ignore[arg-type]
    if len(found) != size:
        raise DataError(
            f"`labels` must contain one label for each of the {size} examples of {type(dataset).__name__}; "
            f"got {len(found)}."
        )
    return found


def _stored_labels(dataset: Dataset[Any]) -> NDArray[np.int64]:
    if isinstance(dataset, Subset):
        return _stored_labels(dataset.dataset)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_stored_labels(part) for part in dataset.datasets])
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        return _convert_labels("TensorDataset.tensors[1]", dataset.tensors[1])
    for name in ("targets", "labels"):
        if (found := getattr(dataset, name, None)) is not None:
            return _convert_labels(f"{type(dataset).__name__}.{name}", found)
    raise DataError(
        f"{type(dataset).__name__} has neither `targets` nor `labels`, but tasks are drawn by class. Pass `labels=`, "
        "one integer per example; [y for _, y in dataset] loads every example once."
    )


def _convert_labels(name: str, labels: Any) -> NDArray[np.int64]:
    try:
        values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except ValueError as cause:
        raise DataError(f"`{name}` must contain one integer per example; got a ragged list ({cause}).") from cause
    if values.ndim != 1:
        advice = "Convert one-hot labels by argmax(1)" if values.ndim == 2 else "Pass one label per example"
        raise DataError(f"`{name}` must have shape [examples]; got {values.shape}. {advice}.")
    if not np.issubdtype(values.dtype, np.integer):
        found = f"{type(labels[0]).__name__} {labels[0]!r}" if len(values) else "no label"
        raise DataError(
            f"`{name}` must be integers; got dtype {values.dtype}; the first is {found}. Number the classes: "
            "numpy.unique(labels, return_inverse=True)[1]."
        )
    return values.astype(np.int64)
