"""A domain: one distribution of tasks, with its own training, validation and test classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np

from gradhomog.tasks import Task

Split = Literal["train", "val", "test", "all"]
"""A part of a domain's classes. `"all"` is every class: for domains that a run only ever tests on."""


class Domain(ABC):
    """One distribution that tasks come from: a data set, a script, a family of functions.

    A subclass sets the attributes and implements `check` and `sample`. The same domain serves training and test:
    its splits share no class (classification) or no parameter draw (regression).

    Attributes:
        name: what reports call it, e.g. `"glyphs:greek"`.
        input_shape: shape of one input, e.g. `(3, 32, 32)` or `(1,)`.
        outputs: `None` for classification (the head has one output per way), else the number of regression targets.
    """

    name: str
    input_shape: tuple[int, ...]
    outputs: int | None = None

    @abstractmethod
    def check(self, split: Split, *, ways: int, shots: int, queries: int) -> None:
        """Raise `DataError`, naming domain, split and numbers, if such tasks cannot be drawn from this split."""

    @abstractmethod
    def sample(self, split: Split, random: np.random.Generator, *, ways: int, shots: int, queries: int) -> Task:
        """Draw one task: `ways` classes, `shots` support and `queries` query inputs of each, none in both.

        All randomness comes from `random`, so that the generator's seed alone decides the task. For regression `ways`
        is ignored, and `shots` and `queries` count points.

        `Task.classes`, if the domain tells them, are numbers among `classes(split)`.
        """

    def classes(self, split: Split) -> Sequence[int]:
        """Numbers of all classes of a split, as `Task.classes` uses them; empty if the domain tells none.

        Learners that classify all training classes at once need both.
        """
        return ()
