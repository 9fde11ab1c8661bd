"""Results and learning curves of a comparison as columns, for custom plots and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.records import records

Table = dict[str, NDArray[Any]]
"""Columns of equal length, by name. Unknown and non-finite numbers are NaN."""

KEY_COLUMNS = ("learner", "label", "seed", "run")


@dataclass(frozen=True, eq=False)
class Results:
    """A comparison as four tables. Their first columns are `learner`, `label` (of the method, as in the printed
    table), `seed` and `run` (the folder within `runs/`).

    Attributes:
        runs: one entry per run of the table: `homogenizers`, `score` (mean over test tasks), `validation`,
            `best_step`, `steps`, `seconds`, `step_seconds`.
        scores: one entry per test task of each run: `task`, `domain`, `score`, `loss`.
        validation: one entry per validation of each run: `step`, `score`, `half_width`.
        steps: one entry per task of each logged training step: `step`, `task`, `domain`, `loss`, `norm` (of the task's
            row), `weight` (of the row), `cosine` (mean cosine with the rows of the other tasks).
    """

    runs: Table
    scores: Table
    validation: Table
    steps: Table


def load(folder: str | Path) -> Results:
    """Return the results of a comparison's folder, finished or not, without executing code from its files.

    Raises:
        ConfigError: it is not the folder of a comparison, or a file is damaged.
    """
    compared = [record for record in records(Path(folder)) if record.get("role") == "compare"]
    results = _select_event(compared, "result")
    return Results(
        _table(
            results, _run_rows, ("homogenizers", "score", "validation", "best_step", "steps", "seconds", "step_seconds")
        ),
        _table(results, _score_rows, ("task", "domain", "score", "loss")),
        _table(_select_event(compared, "validation"), lambda record: [record], ("step", "score", "half_width")),
        _table(
            _select_event(compared, "step"), _step_rows, ("step", "task", "domain", "loss", "norm", "weight", "cosine")
        ),
    )


def _select_event(records: Iterable[Record], event: str) -> list[Record]:
    return [record for record in records if record["event"] == event]


def _run_rows(record: Record) -> Iterator[Mapping[str, Any]]:
    yield {**record, "score": _mean(record["scores"])}


def _score_rows(record: Record) -> Iterator[Mapping[str, Any]]:
    for task, values in enumerate(zip(record["domains"], record["scores"], record["losses"], strict=True)):
        yield {"task": task, **dict(zip(("domain", "score", "loss"), values, strict=True))}


def _step_rows(record: Record) -> Iterator[Mapping[str, Any]]:
    """Yield one row per task in the step."""
    for position, (task, name) in enumerate(zip(record["tasks"], record["names"], strict=True)):
        others = [cosine for other, cosine in enumerate(record["cosines"][position]) if other != position]
        yield {
            "step": record["step"], "task": task, "domain": name, "loss": record["losses"][position],
            "norm": record["norms"][position], "cosine": _mean(others),
            "weight": None if record["weights"] is None else record["weights"][position],
        }  # fmt: skip


def _mean(values: Iterable[float | None]) -> float:
    numbers = _column(values)
    return float(numbers.mean()) if numbers.size else float("nan")


def _table(records: Iterable[Record], rows: Any, names: tuple[str, ...]) -> Table:
    columns: dict[str, list[Any]] = {name: [] for name in (*KEY_COLUMNS, *names)}
    for record in records:
        for row in rows(record):
            for name in KEY_COLUMNS:
                columns[name].append(record[name])
            for name in names:
                columns[name].append(row.get(name))
    return {name: _column(values) for name, values in columns.items()}


def _column(values: Iterable[Any]) -> NDArray[Any]:
    """Return an array of text or integers, or of floats with NaN for None."""
    entries = list(values)
    if any(value is None for value in entries):
        entries = [np.nan if value is None else value for value in entries]
    return np.array(entries) if entries else np.zeros(0)
