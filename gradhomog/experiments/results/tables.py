"""The results and curves of a comparison as columns, for plots and tables of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog.errors import ConfigError
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.records import records

Table = dict[str, NDArray[Any]]
"""Columns of one length by name. A number that is unknown or was not finite is NaN."""

METHOD = ("learner", "label", "seed", "run")


@dataclass(frozen=True, eq=False)
class Results:
    """A comparison as four tables. The first columns of each are `learner`, `label` (the method, as in the printed
    table), `seed` and `run` (its folder within `runs/`).

    Attributes:
        runs: one entry for each run of the table: `homogenizers`, `score` (mean over test tasks), `validation`,
            `best_step`, `steps`, `seconds`, `step_seconds`.
        scores: one for each test task of each run: `task`, `domain`, `score`, `loss`.
        validation: one for each validation of each run: `step`, `score`, `half_width`.
        steps: one for each task of each training step that was logged: `step`, `task`, `domain`, `loss`, `norm` (of its
            gradient), `weight` (its share in the step), `cosine` (mean over the other tasks, of the gradients).
    """

    runs: Table
    scores: Table
    validation: Table
    steps: Table

    def to_pandas(self) -> dict[str, Any]:
        """The tables as `pandas.DataFrame`s, by name.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as cause:
            raise ConfigError("`to_pandas` needs pandas. Install it with: pip install pandas") from cause
        return {name: pd.DataFrame(table) for name, table in vars(self).items()}


def load(folder: str | Path) -> Results:
    """Read the folder of a comparison, finished or not; runs code of no file.

    Raises:
        ConfigError: it is no such folder, or a file is damaged.
    """
    found = [record for record in records(Path(folder)) if record.get("role") == "compare"]
    results = [record for record in found if record["event"] == "result"]
    return Results(
        _table(
            results, _of_run, ("homogenizers", "score", "validation", "best_step", "steps", "seconds", "step_seconds")
        ),
        _table(results, _of_test, ("task", "domain", "score", "loss")),
        _table(_of(found, "validation"), lambda record: [record], ("step", "score", "half_width")),
        _table(_of(found, "step"), _of_step, ("step", "task", "domain", "loss", "norm", "weight", "cosine")),
    )


def _of(found: Iterable[Record], event: str) -> list[Record]:
    return [record for record in found if record["event"] == event]


def _of_run(record: Record) -> Iterator[Mapping[str, Any]]:
    yield {**record, "score": _mean(record["scores"])}


def _of_test(record: Record) -> Iterator[Mapping[str, Any]]:
    for task, values in enumerate(zip(record["domains"], record["scores"], record["losses"], strict=True)):
        yield {"task": task, **dict(zip(("domain", "score", "loss"), values, strict=True))}


def _of_step(record: Record) -> Iterator[Mapping[str, Any]]:
    """Tasks that did not take part in the step have a loss and nothing else."""
    places = {task: place for place, task in enumerate(record["tasks"])}
    for task, (domain, loss) in enumerate(zip(record["domains"], record["losses"], strict=True)):
        one: dict[str, Any] = {"step": record["step"], "task": task, "domain": domain, "loss": loss}
        if (place := places.get(task)) is not None:
            others = [cosine for other, cosine in enumerate(record["cosines"][place]) if other != place]
            one["norm"], one["cosine"] = record["norms"][place], _mean(others)
            one["weight"] = None if record["weights"] is None else record["weights"][place]
        yield one


def _mean(values: Iterable[float | None]) -> float:
    numbers = _column(values)
    return float(numbers.mean()) if numbers.size else float("nan")


def _table(found: Iterable[Record], rows: Any, names: tuple[str, ...]) -> Table:
    columns: dict[str, list[Any]] = {name: [] for name in (*METHOD, *names)}
    for record in found:
        for row in rows(record):
            for name in METHOD:
                columns[name].append(record[name])
            for name in names:
                columns[name].append(row.get(name))
    return {name: _column(values) for name, values in columns.items()}


def _column(values: Iterable[Any]) -> NDArray[Any]:
    """Text, integers, or floats with NaN for None."""
    listed = list(values)
    if any(value is None for value in listed):
        listed = [np.nan if value is None else value for value in listed]
    return np.array(listed) if listed else np.zeros(0)
