"""Interface of a multi-task problem: its table in the run file, its defaults, and its trainable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

EPISODIC = (
    "learner", "domains", "episodes", "test", "network.channels", "train.inner", "train.inner_steps", "train.inner_lr",
    "train.validation_episodes", "train.ensemble", "train.augmentation",
)  # fmt: skip
"""Keys of a run file that concern episodes, which multi-task problems do not have."""


class Options(Protocol):
    """The table `[problem]`: a frozen dataclass with the problem's name."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class ProblemSpec:
    """A multi-task problem, the value of `PROBLEM` in its module.

    Attributes:
        name: value of `problem.name`.
        options: dataclass of the table; fields with a range are created with `validation.at_least`.
        trainable: called as `trainable(config, run)` with a validated configuration; returns the `Trainable` of a run.
        defaults: defaults of other keys of the run file, as nested tables.
        option_defaults: function of the options; returns defaults of top-level keys that depend on them.
        unused_keys: key paths that have no meaning with this problem.
        has_single_task: True if the method "single-task" exists, which trains a separate network for each task.
    """

    name: str
    options: type[Any]
    trainable: Callable[..., Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    option_defaults: Callable[[Any], Mapping[str, Any]] = lambda options: {}
    unused_keys: tuple[str, ...] = EPISODIC
    has_single_task: bool = True

    def defaults_for(self, options: Any) -> dict[str, Any]:
        """The defaults of other keys with these options."""
        return {**self.defaults, **self.option_defaults(options)}
