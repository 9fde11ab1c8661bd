"""Columns and scales of the PINN tables, and the comparisons that compute them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradhomog.errors import ConfigError, did_you_mean, join_errors
from gradhomog.experiments.config.overrides import apply_override
from gradhomog.experiments.config.schema import load
from gradhomog.experiments.reproduce.experiments import Part
from gradhomog.experiments.reproduce.pinn import methods


@dataclass(frozen=True)
class Scale:
    """Length of training.

    Attributes:
        summary: length and time, for the report.
        steps: steps of the columns of DCGD.
        config_steps: steps of the column of ConFIG.
        seeds: runs of each method.
    """

    summary: str
    steps: int
    config_steps: int
    seeds: int


SCALES: Mapping[str, Scale] = {
    "smoke": Scale("20 steps, one seed: seconds a run, to check the command; do not read the numbers", 20, 20, 1),
    "small": Scale("2,500 steps (ConFIG's notebook: 1,000), three seeds: under a minute a run", 2500, 1000, 3),
    "medium": Scale("10,000 steps (ConFIG's notebook: 5,000), three seeds: minutes a run", 10_000, 5000, 3),
    "paper": Scale(
        "50,000 steps (ConFIG's notebook: 5,000), ten seeds: five to fifteen minutes a run", 50_000, 5000, 10
    ),
}
"""Scales by name."""

DECAYS = 50
"""Periods of constant rate during training, each of at least one step: 1,000 steps at the papers' length."""


@dataclass(frozen=True)
class Column:
    """A column of a table: a problem in the settings of one source.

    Attributes:
        name: its name on the command line and in `published.toml`.
        problem: value of `problem.name`.
        title: description for the report.
        error: name of the error of its numbers.
        paper: source of the printed numbers, for the notes of the report.
        methods: pipelines by title.
        tracked: the same for methods on averages of rows, which Adam with β₁ = 0 follows.
        keys, tracked_keys: values of run-file keys; those of the second are only for methods on averages.
    """

    name: str
    problem: str
    title: str
    error: str
    paper: str
    methods: Mapping[str, str]
    tracked: Mapping[str, str]
    keys: Mapping[str, Any]
    tracked_keys: Mapping[str, Any]


_DCGD: Mapping[str, Any] = {
    "problem.conditions": "merged", "problem.state": "lowest_loss", "problem.error": "relative_l2",
    "problem.depth": 3, "network.width": 50, "train.outer_lr": 0.001, "train.lr_decay": 0.9,
}  # fmt: skip

_CONFIG: Mapping[str, Any] = {
    "problem.conditions": "separate", "problem.state": "lowest_error", "problem.error": "mse",
    "problem.depth": 5, "problem.interior": 2000, "problem.initial": 50, "problem.boundary": 25,
    "network.width": 50, "train.outer_lr": 0.0001, "train.lr_decay": 1.0,
}  # fmt: skip

_TABLE_1 = (
    "DCGD's Table 1 (mean and standard deviation of ten runs of 50,000 steps, the best of three rates; here it is 1e-3)"
)

_NOTEBOOK = "for burgers_config, ConFIG's notebook (one run of 5,000 steps)"

COLUMNS: Mapping[str, Column] = {
    **{
        name: Column(
            name, name, f"{name}, Table 1 of DCGD", "relative L² error", _TABLE_1, methods.TWO_LOSSES,
            methods.TWO_LOSSES_TRACKED, _DCGD, {"train.beta1": 0.0},
        )
        for name in ("helmholtz", "burgers", "klein_gordon")
    },
    # The notebook's M-ConFIG: SGD with rate 5e-4, after a division by a second moment that is Adam's.
    "burgers_config": Column(
        "burgers_config", "burgers", "burgers, notebook of ConFIG", "mean squared error", _NOTEBOOK,
        methods.THREE_LOSSES, methods.THREE_LOSSES_TRACKED, _CONFIG, {"train.beta1": 0.0, "train.outer_lr": 0.0005},
    ),
}  # fmt: skip
"""Columns by name."""


@dataclass(frozen=True)
class PinnSettings:
    """The user's choices.

    Attributes:
        scale: a name in `SCALES`.
        targets: names of columns; empty: all.
        methods: titles of rows; empty: all.
        overrides: `key.path=value` of the run files.
    """

    scale: str = "smoke"
    targets: Sequence[str] = ()
    methods: Sequence[str] = ()
    overrides: Sequence[str] = ()


def parts(settings: PinnSettings) -> list[Part]:
    """The comparisons: one or two for each column, with β₁ = 0.9 and 0.

    Raises:
        ConfigError: a name is unknown, no row remains, or an override is invalid.
    """
    _check(settings)
    steps = _overridden_steps(settings.overrides)
    found = []
    for column in COLUMNS.values():
        if settings.targets and column.name not in settings.targets:
            continue
        for name, pipelines, extra_keys in (
            (column.name, column.methods, {}),
            (f"{column.name}-tracked", column.tracked, column.tracked_keys),
        ):
            chosen = {title: text for title, text in pipelines.items() if _is_chosen(title, settings)}
            if not chosen:
                continue
            keys = {
                "problem.name": column.problem, **_scale_keys(column, SCALES[settings.scale], steps), **column.keys,
                **extra_keys, "homogenizers": list(chosen.values()),
            }  # fmt: skip
            config = load(None, settings.overrides, _nested(keys))
            found.append(Part(name, column.name, config, tuple(methods.rows(chosen, column.name, column.problem))))
    if not found:
        raise ConfigError(f"no column of {', '.join(settings.targets)} has a row {', '.join(settings.methods)}.")
    return found


def _is_chosen(title: str, settings: PinnSettings) -> bool:
    return not settings.methods or title.lower() in [name.lower() for name in settings.methods]


def _overridden_steps(overrides: Sequence[str]) -> int | None:
    """Return the value of `train.steps`; None if it is not overridden, or if it is invalid and `load` will raise."""
    content: dict[str, Any] = {}
    for override in overrides:
        apply_override(content, override)
    table = content.get("train")
    steps = table.get("steps") if isinstance(table, Mapping) else None
    return steps if isinstance(steps, int) else None


def _scale_keys(column: Column, scale: Scale, overridden_steps: int | None) -> dict[str, Any]:
    """Keys that follow from the length of training; reductions of the rate, for example, are spread over all steps."""
    steps = scale.config_steps if column.problem != column.name else scale.steps
    steps = steps if overridden_steps is None else overridden_steps
    return {
        "seeds": scale.seeds, "train.steps": steps, "train.lr_decay_every": max(1, steps // DECAYS),
        "train.validate_every": max(1, steps // 100), "train.log_every": max(1, steps // 100),
        "train.checkpoint_every": max(1, steps // 20),
    }  # fmt: skip


def _nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for path, value in keys.items():
        *tables, last = path.split(".")
        table = content
        for name in tables:
            table = table.setdefault(name, {})
        table[last] = value
    return content


def _check(settings: PinnSettings) -> None:
    titles = {title.lower() for title in methods.TITLES}
    errors = [
        f"`pinn` has no target {name!r}; it has {', '.join(COLUMNS)}.{did_you_mean(name, COLUMNS)}"
        for name in settings.targets
        if name not in COLUMNS
    ]
    errors += [
        f"`pinn` has no method {name!r}; it has {', '.join(methods.TITLES)}.{did_you_mean(name, methods.TITLES)}"
        for name in settings.methods
        if name.lower() not in titles
    ]
    # The last three determine the meaning of the printed errors.
    compare = "`gradhomog compare`"
    reserved = {
        "homogenizers": "--method", "problem.name": "--target", "learner": compare, "problem.error": compare,
        "problem.state": compare, "problem.conditions": compare,
    }  # fmt: skip
    for override in settings.overrides:
        key = override.partition("=")[0].strip()
        errors += [
            f"--set {key}: the experiment sets this key; use {instead}."
            for path, instead in reserved.items()
            if key in (path, path.rpartition(".")[0])
        ][:1]
    if errors:
        raise ConfigError(join_errors(errors))
