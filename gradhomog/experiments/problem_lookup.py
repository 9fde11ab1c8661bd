"""Multi-task problems by name, as in `problem.name` of a run file: their table, and what a run trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from gradhomog.errors import ConfigError
from gradhomog.experiments.run_file.validation import build
from gradhomog.registry import installed
from gradhomog.registry.options import option_parameters
from gradhomog.registry.specs import ProblemSpec

if TYPE_CHECKING:
    from gradhomog.problems import MultiTaskData, Problem, ProblemRun

EPISODIC = (
    "learner", "domains", "episodes", "test", "network.channels", "train.inner", "train.inner_steps", "train.inner_lr",
    "train.validation_episodes", "train.ensemble", "train.augmentation",
)  # fmt: skip
"""Keys of a run file that concern episodes, which multi-task problems do not have."""


def find(name: Any) -> ProblemSpec:
    """Return the problem of a name.

    Raises:
        ConfigError: the name is missing. PluginError: it is unknown, or the plugin cannot be used.
    """
    if name is None:
        names = ", ".join(installed().names("problems"))
        raise ConfigError(f"`problem.name` is missing. Installed problems: {names}.")
    return cast(ProblemSpec, installed().load("problems", str(name))[1])


def unused_keys(spec: ProblemSpec) -> tuple[str, ...]:
    """Return the key paths of a run file that have no meaning with a problem."""
    return (*EPISODIC, *spec.unused_keys)


def table(spec: ProblemSpec, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table `[problem]` of a run file with the defaults of its options.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type or is out of range.
    """
    fields: list[Any] = [("name", str)]
    for name, parameter in option_parameters(spec).items():
        default = dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
        factory = dataclasses.field(default_factory=lambda value=default: _as_lists(value))  # type: ignore[misc]
        fields.append((name, parameter.annotation, dataclasses.field() if default is dataclasses.MISSING else factory))
    made: Any = build(dataclasses.make_dataclass("Options", fields, kw_only=True), content, "problem.")
    return dataclasses.asdict(made)


def _as_lists(value: Any) -> Any:
    """Return a value as TOML stores it: tuples are lists."""
    return [_as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def make(table: Mapping[str, Any], run: ProblemRun) -> Problem | MultiTaskData:
    """Return the problem of a table, or its data.

    Raises:
        GradhomogError: options or data are invalid, or the plugin raises or returns another type.
    """
    from gradhomog.problems import MultiTaskData, Problem

    options = {name: value for name, value in table.items() if name != "name"}
    info, _, made = installed().make("problems", table["name"], options, run)
    checked: Problem | MultiTaskData = info.checked(made, Problem, MultiTaskData)
    return checked
