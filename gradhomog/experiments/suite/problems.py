"""The fixed problems of the suite, from `problems.toml`, and the runs of a method on each."""

import ast
import dataclasses
import functools
import hashlib
import inspect
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, MinLen

import gradhomog
from gradhomog.errors import ConfigError, did_you_mean
from gradhomog.experiments.execution.methods import FACTORS as WRONG
from gradhomog.experiments.execution.methods import misscaled, takes_misscaled_losses
from gradhomog.experiments.run_file import content
from gradhomog.experiments.run_file.schema import Config, load
from gradhomog.experiments.run_file.validation import build
from gradhomog.experiments.runs import PLAIN, SINGLE
from gradhomog.registry import installed
from gradhomog.step.pipelines import pipeline

STATIC = "static"
"""The row of tuned static weights: its factors are the grid of weights of the scaled task."""

GIVEN = 1.0
"""The factor of the given losses."""

FACTORS = (GIVEN, *WRONG)
"""Factors of the loss of the scaled task."""

GRID = tuple(10 ** (power / 2) for power in range(-6, 7))
"""The 13 static weights of the scaled task; the others have weight 1."""

CHECKPOINTS = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1.0)
"""Shares of the steps after which a run is validated."""

SEEDS = (0, 1, 2, 3, 4)
"""Seeds of all rows."""

SELECTING = 3
"""The number of seeds, the first ones, whose mean validation error selects the learning rate."""


@dataclass(frozen=True, eq=False)
class SuiteProblem:
    """A problem of the suite.

    Attributes:
        name: its name in tables.
        question: its task, in a sentence.
        scaled_task: the task whose loss is multiplied.
        steps: training steps of a run, at least 8, so that all `CHECKPOINTS` differ.
        rates: the learning rates, from which validation selects one for each row.
        best: the best score, from which errors are measured; by default that of the metric, 1 or 0.
        tolerance: the error that is good enough: smaller errors count as this one.
        quick: True if it is part of the quick suite.
        settings: the run file, without methods and seeds.
    """

    name: str
    question: str
    scaled_task: str
    steps: Annotated[int, Ge(8)]
    rates: Annotated[Sequence[float], MinLen(1)]
    settings: Mapping[str, Any]
    best: float | None = None
    tolerance: float = 0.0
    quick: bool = False

    @functools.cached_property
    def config(self) -> Config:
        """The run file with the defaults of its problem."""
        schedule = {"steps": self.steps, "validate_every": self.steps, "outer_lr": self.rates[len(self.rates) // 2]}
        train = {**schedule, **self.settings.get("train", {})}
        return load(defaults={**self.settings, "train": train})

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs: one if nothing in the problem is random."""
        return SEEDS[:1] if self.spec is not None and self.spec.deterministic else SEEDS

    @property
    def spec(self) -> Any:
        """The spec of its multi-task problem; None for episodes."""
        return None if self.config.problem is None else content.find_problem(self.config.problem["name"])

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all settings that determine the runs of a row."""
        config = dataclasses.replace(self.config, homogenizers=["none"], seeds=len(self.seeds))
        settings = [
            config.digest,
            self.scaled_task,
            *self.rates,
            self.best,
            self.tolerance,
            FACTORS,
            GRID,
            CHECKPOINTS,
            SELECTING,
        ]
        return hashlib.sha256(repr(settings).encode()).hexdigest()[:12]

    def pipeline(self, method: str, factor: float) -> str:
        """The pipeline of a row whose scaled task has `factor` times its loss."""
        text = "none" if method in (PLAIN, STATIC) else method
        return text if factor == GIVEN else misscaled(text, self.scaled_task, factor)

    def code(self, method: str) -> str:
        """A hash of the code of a method's homogenizers, and of the versions of gradhomog and PyTorch."""
        return _hash_sources("none" if method == SINGLE else self.pipeline(method, GIVEN))

    def factors(self, method: str) -> tuple[float, ...]:
        """The factors with which a row is computed; for some methods that of the given losses only."""
        if method == STATIC:
            return GRID
        return FACTORS if method == PLAIN or takes_misscaled_losses(method) else (GIVEN,)

    def applies(self, method: str) -> bool:
        """True if the row exists for this problem."""
        return method != SINGLE or (self.spec is not None and self.spec.single_task)


@functools.cache
def _hash_sources(text: str) -> str:
    digest = hashlib.sha256(f"{gradhomog.__version__} {torch.__version__}".encode())
    for homogenizer in pipeline(text):
        source = Path(inspect.getfile(type(homogenizer))).read_bytes()
        digest.update(repr(_code(ast.parse(source))).encode())
    return digest.hexdigest()[:12]


def _code(node: Any) -> Any:
    """A syntax tree as tuples, without docstrings, comments and imports from `__future__`.

    Fields without a value are omitted: later versions of Python add such fields.
    """
    if isinstance(node, list):
        return tuple(_code(item) for item in node if not _is_documentation(item))
    if isinstance(node, ast.AST):
        fields = ((name, _code(value)) for name, value in ast.iter_fields(node) if value not in (None, []))
        return (type(node).__name__, *fields)
    return node


def _is_documentation(node: Any) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@functools.cache
def problems() -> dict[str, SuiteProblem]:
    """The built-in problems by name, in the order of the tables."""
    text = resources.files("gradhomog.experiments.suite").joinpath("problems.toml").read_text(encoding="utf-8")
    return {name: SuiteProblem(name, **entries) for name, entries in tomllib.loads(text).items()}


def find_problem(name: str) -> SuiteProblem | None:
    """The problem of this name, built-in or of a plugin with `ProblemSpec.suite`; None if there is none.

    Raises:
        ConfigError: `suite` of the plugin has an unknown key, or a value is invalid. PluginError: the plugin cannot be
            used.
    """
    return problems().get(name) or _problem_of_plugin(name)


@functools.cache
def _problem_of_plugin(name: str) -> SuiteProblem | None:
    entries = content.find_problem(name).suite if name in installed().names("problems") else {}
    settings = {"problem": {"name": name}}
    return build(SuiteProblem, {"name": name, "settings": settings, **entries}) if entries else None


def chosen_problems(names: Sequence[str], quick: bool) -> list[SuiteProblem]:
    """The problems of these names, or all built-in ones; only those of the quick suite with `quick`.

    Raises:
        ConfigError: a name is unknown, or none of the problems is quick. See also `find_problem`.
    """
    named, known = [], problems()
    for name in names:
        problem = find_problem(name)
        if problem is None and name in installed().names("problems"):
            raise ConfigError(
                f"the problem {name!r} has no settings for the suite. Its author adds them as `suite` of its "
                "ProblemSpec: question, scaled_task, steps and rates. Without them: gradhomog compare --set "
                f"problem.name={name}"
            )
        if problem is None:
            raise ConfigError(f"unknown problem {name!r}; known: {', '.join(known)}.{did_you_mean(name, known)}")
        named.append(problem)
    chosen = [problem for problem in named or known.values() if problem.quick or not quick]
    if not chosen:
        known_quick = ", ".join(problem.name for problem in known.values() if problem.quick)
        raise ConfigError(f"`--quick` has only the problems {known_quick}; got {', '.join(names)}. Remove `--quick`.")
    return chosen
