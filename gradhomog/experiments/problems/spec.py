"""What a multi-task problem is to the comparison: its table in the run file, its defaults, and what is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

EPISODIC = (
    "learner", "domains", "episodes", "test", "network.channels", "train.inner", "train.inner_steps", "train.inner_lr",
    "train.validation_episodes", "train.ensemble",
)  # fmt: skip
"""Keys of a run file that are about episodes, which a multi-task problem has none of."""


class Options(Protocol):
    """The table `[problem]`: a frozen dataclass with the problem's name."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class ProblemSpec:
    """One problem, as its module offers it under the name `PROBLEM`.

    Attributes:
        name: what `problem.name` is set to.
        options: the dataclass of the table, its fields made with `typed.at_least` where they have a range.
        trainable: called as `trainable(config, run)` with a validated configuration; returns the `Trainable` of a run.
        defaults: of other keys of the run file, tables within tables.
        unused: key paths that mean nothing with this problem.
        single: whether a method "single-task" exists, which trains a network for each task alone.
    """

    name: str
    options: type[Any]
    trainable: Callable[..., Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = EPISODIC
    single: bool = True
