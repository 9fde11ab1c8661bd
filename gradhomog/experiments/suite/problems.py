"""The fixed problems of the suite, from `problems.toml`, and the runs of a method on each."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from gradhomog.errors import ConfigError, did_you_mean
from gradhomog.experiments.execution.misscale import misscaled, takes_misscaled_losses
from gradhomog.experiments.results.runs import PLAIN, SINGLE
from gradhomog.experiments.run_file.schema import Config, load

STATIC = "static"
"""The row of tuned static weights: its scales are the grid of weights of the scaled task."""

SCALES = (1.0, 0.01, 100.0)
"""Factors of the loss of the scaled task; 1, the given losses, is first."""

GRID = tuple(10 ** (power / 2) for power in range(-6, 7))
"""The 13 static weights of the scaled task; the others have weight 1."""

SEEDS = (0, 1, 2, 3, 4)
"""Seeds of all rows; the first selects the learning rate, by validation."""


@dataclass(frozen=True, eq=False)
class SuiteProblem:
    """A problem of the suite.

    Attributes:
        name: its name in tables.
        question: its task, in a sentence.
        scaled_task: the task whose loss is multiplied.
        steps: training steps of a run.
        rates: the learning rates, from which validation selects one for each row.
        best: the best score, from which errors are measured; by default that of the metric, 1 or 0.
        tolerance: the error that is good enough: smaller errors count as this one.
        control: True if nothing should gain.
        quick: True if it is part of the quick suite.
        settings: the run file, without methods and seeds.
    """

    name: str
    question: str
    scaled_task: str
    steps: int
    rates: Sequence[float]
    settings: Mapping[str, Any]
    best: float | None = None
    tolerance: float = 0.0
    control: bool = False
    quick: bool = False

    @functools.cached_property
    def config(self) -> Config:
        """The run file with the defaults of its problem."""
        schedule = {"steps": self.steps, "validate_every": self.steps, "outer_lr": self.rates[1]}
        train = {**schedule, **self.settings.get("train", {})}
        return load(defaults={**self.settings, "train": train})

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs: one if nothing in the problem is random."""
        return SEEDS[:1] if self.spec is not None and self.spec.deterministic else SEEDS

    @property
    def spec(self) -> Any:
        """The spec of its multi-task problem; None for episodes."""
        from gradhomog.experiments import content

        return None if self.config.problem is None else content.find_problem(self.config.problem["name"])

    @property
    def digest(self) -> str:
        """A hash of the settings that determine the results of a run with a given pipeline."""
        config = dataclasses.replace(self.config, homogenizers=["none"], seeds=len(self.seeds))
        return config.digest

    def pipeline(self, method: str, scale: float) -> str:
        """The pipeline of a row whose scaled task has `scale` times its loss."""
        text = "none" if method in (PLAIN, STATIC) else method
        return text if scale == SCALES[0] else misscaled(text, self.scaled_task, scale)

    def scales(self, method: str) -> tuple[float, ...]:
        """The scales at which the protocol computes a row; for some methods the given losses only."""
        if method == STATIC:
            return GRID
        return SCALES if method == PLAIN or takes_misscaled_losses(method) else SCALES[:1]

    def applies(self, method: str) -> bool:
        """True if the row exists for this problem."""
        return method != SINGLE or (self.spec is not None and self.spec.single_task)


@functools.cache
def problems() -> dict[str, SuiteProblem]:
    """The problems by name, in the order of the tables."""
    text = resources.files("gradhomog.experiments.suite").joinpath("problems.toml").read_text(encoding="utf-8")
    content: dict[str, Any] = tomllib.loads(text)
    return {name: SuiteProblem(name, **entries) for name, entries in content.items()}


def chosen_problems(names: list[str], quick: bool) -> list[SuiteProblem]:
    """The problems of these names, or all; only those of the quick suite with `quick`.

    Raises:
        ConfigError: a name is unknown.
    """
    known = problems()
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown problem {name!r}; known: {', '.join(known)}.{did_you_mean(name, known)}")
    named = [known[name] for name in names] or list(known.values())
    return [problem for problem in named if problem.quick or not quick]
