"""Few-shot tasks and task batches: the inputs of learners."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradhomog.errors import DataError
from gradhomog.step.step import TaskKey, task_keys


@dataclass(frozen=True)
class _Movable:
    """Base of dataclasses of tensors that are copied to other memory together."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Copy to a device; `non_blocking` as in `torch.Tensor.to`, for tensors in pinned memory."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Copy to pinned memory, as `DataLoader(pin_memory=True)` does."""
        return self._map_tensors(Tensor.pin_memory)

    def _map_tensors(self, function: Callable[[Tensor], Tensor], **changes: Any) -> Self:
        """Return a copy with a function applied to every tensor, and other changes."""
        tensors = {name: function(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, **tensors, **changes)


@dataclass(frozen=True)
class Task(_Movable):
    """One task: a support set to adapt to and a query set to evaluate the adapted network on.

    Attributes:
        support_x: inputs, `[support, *input]`; images are `[support, channels, height, width]` in [-1, 1].
        support_y: int64 class indices `[support]` in 0..ways-1, or float targets `[support, outputs]`.
        query_x, query_y: the same for the query set.
        domain: the name of the task's domain, e.g. `"glyphs:greek"`; `""` if unknown.
        classes: int64 `[ways]`, the class of each label, as its number among all classes of the domain, or of all
            domains of a stream. None if classes have no numbers.
    """

    support_x: Tensor
    support_y: Tensor
    query_x: Tensor
    query_y: Tensor
    domain: str = ""
    classes: Tensor | None = None


@dataclass(frozen=True)
class TaskBatch(_Movable):
    """N tasks of equal shape: every tensor of `Task` with a leading dimension `tasks`, and one domain name per task.

    `classes` is `[tasks, ways]`; None unless every task has classes. `slots` are the positions of the tasks in the full
    batch if some were left out by `select`; empty otherwise.
    """

    support_x: Tensor
    support_y: Tensor
    query_x: Tensor
    query_y: Tensor
    domains: tuple[str, ...] = ()
    classes: Tensor | None = None
    slots: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        n = self.support_x.shape[0]
        if n == 0:
            raise DataError("a task batch must contain at least one task; got none.")
        for name in ("support_y", "query_x", "query_y", "classes"):
            if getattr(self, name) is not None and getattr(self, name).shape[0] != n:
                raise DataError(
                    f"the first dimension of `{name}` must be {n}, the number of tasks in `support_x`; "
                    f"got shape {tuple(getattr(self, name).shape)}."
                )
        if self.slots and len(self.slots) != n:
            raise DataError(f"`slots` must contain one position for each of the {n} tasks; got {self.slots}.")
        if self.domains and len(self.domains) != n:
            raise DataError(f"`domains` must contain one name for each of the {n} tasks; got {self.domains}.")

    @classmethod
    def stack(cls, tasks: Sequence[Task]) -> TaskBatch:
        """Stack tasks of equal shape along a new first dimension."""
        if not tasks:
            raise DataError("a task batch must contain at least one task; got none.")
        names = ["support_x", "support_y", "query_x", "query_y"]
        if all(task.classes is not None for task in tasks):
            names.append("classes")
        fields: dict[str, Any] = {}
        for name in names:
            tensors = [getattr(task, name) for task in tasks]
            if len({t.shape for t in tensors}) > 1:
                shapes = ", ".join(
                    f"{task.domain or 'task'} {tuple(t.shape)}" for task, t in zip(tasks, tensors, strict=True)
                )
                raise DataError(f"`{name}` must have the same shape in all tasks of a batch; got {shapes}.")
            fields[name] = torch.stack(tensors)
        return cls(**fields, domains=tuple(task.domain for task in tasks))

    @property
    def keys(self) -> tuple[TaskKey, ...]:
        """The key of each task: its position in the full batch, and its domain."""
        return task_keys(self.slots or range(len(self)), self.domains)

    def select(self, tasks: Sequence[int]) -> TaskBatch:
        """Return some of the tasks; they keep the positions that they have in this batch."""
        index, keys = list(tasks), self.keys
        domains = tuple(self.domains[task] for task in index) if self.domains else ()
        slots = tuple(keys[task].slot for task in index)
        return self._map_tensors(lambda tensor: tensor[index], domains=domains, slots=slots)

    def __len__(self) -> int:
        return self.support_x.shape[0]

    def __getitem__(self, index: int) -> Task:
        return Task(
            self.support_x[index], self.support_y[index], self.query_x[index], self.query_y[index],
            self.domains[index] if self.domains else "", None if self.classes is None else self.classes[index],
        )  # fmt: skip

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))


def draw_examples(
    random: np.random.Generator, counts: NDArray[np.int64], *, ways: int, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw `ways` classes and `size` examples of each, uniformly and without replacement.

    `counts` is the number of examples of each class.

    Returns:
        Indices of the classes into `counts` `[ways]`, and indices of the examples within their class `[ways, size]`.
    """
    drawn = random.choice(len(counts), size=ways, replace=False)
    return drawn, np.stack([random.choice(counts[c], size=size, replace=False) for c in drawn])


def classification_task(support_x: Tensor, query_x: Tensor, domain: str, classes: NDArray[np.int64]) -> Task:
    """Return a task from inputs ordered by class, with equally many of each class; class c_i has label i."""
    labels = torch.arange(len(classes))
    support_y, query_y = (labels.repeat_interleave(len(x) // len(classes)) for x in (support_x, query_x))
    return Task(support_x, support_y, query_x, query_y, domain, torch.from_numpy(classes))
