"""The table: our errors, the papers', and their ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradhomog.experiments.analysis.statistics import Interval, mean_interval, paired_test
from gradhomog.experiments.analysis.summary import summarize
from gradhomog.experiments.execution import plan
from gradhomog.experiments.reproduce.experiments import Part
from gradhomog.experiments.reproduce.pinn.methods import PLAIN, TITLES
from gradhomog.experiments.reproduce.pinn.published import PublishedError, published_error
from gradhomog.experiments.results.comparison_dir import PLAN
from gradhomog.experiments.results.events import json_compatible
from gradhomog.experiments.results.records import records as read_records


@dataclass(frozen=True)
class Cell:
    """One row in one column.

    Attributes:
        column, row: titles.
        ours: mean over seeds with its 95 % interval.
        median: median over seeds.
        seed_errors: error by seed.
        to_plain: difference to Adam, paired by seed; None for Adam, and without a common seed.
        step_seconds: processor time of a training step; None if unknown.
        chosen: the chosen candidate of a tuned row; None for other rows.
        published: the paper's error.
    """

    column: str
    row: str
    ours: Interval
    median: float
    seed_errors: dict[int, float]
    to_plain: Interval | None
    step_seconds: float | None
    chosen: str | None
    published: PublishedError | None

    @property
    def ratio(self) -> float | None:
        """Our mean divided by the paper's."""
        return None if self.published is None else self.ours.mean / self.published.mean


@dataclass(frozen=True)
class Table:
    """The cells, column by column, and the columns and rows without a result."""

    cells: tuple[Cell, ...]
    missing: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.column for cell in self.cells))


def collect(parts: Sequence[Part], folder: Path) -> Table:
    """Read the results of all parts, finished or not; all rows of a column are compared with its plain network.

    Raises:
        ConfigError: a file is damaged.
    """
    cells: list[Cell] = []
    missing: list[str] = []
    for column in dict.fromkeys(part.column for part in parts):
        found: dict[str, Any] = {}
        titles: list[str] = []
        for part in parts:
            if part.column == column:
                titles += [row.title for row in part.rows]
                found |= _rows(part, folder / part.name)
        plain = dict(zip(found[PLAIN].seeds, found[PLAIN].seed_scores, strict=True)) if PLAIN in found else {}
        for title in sorted(titles, key=TITLES.index):
            if title in found:
                cells.append(_cell(column, title, found[title], plain))
            else:
                missing.append(f"{column}, {title}")
    return Table(tuple(cells), tuple(missing))


def to_json(table: Table) -> dict[str, Any]:
    """The table as plain dicts and lists; None for unknown numbers."""
    cells = [
        {
            "column": cell.column, "row": cell.row, "mean": cell.ours.mean, "half_width": cell.ours.half_width,
            "median": cell.median, "errors": list(cell.seed_errors.values()), "seeds": list(cell.seed_errors),
            "difference_to_plain": cell.to_plain.mean if cell.to_plain else None,
            "difference_half_width": cell.to_plain.half_width if cell.to_plain else None,
            "step_seconds": cell.step_seconds, "chosen": cell.chosen,
            "published": cell.published.mean if cell.published else None,
            "published_deviation": cell.published.deviation if cell.published else None, "ratio": cell.ratio,
        }
        for cell in table.cells
    ]  # fmt: skip
    content: dict[str, Any] = json_compatible({"experiment": "pinn", "cells": cells, "missing": list(table.missing)})
    return content


def _rows(part: Part, folder: Path) -> dict[str, Any]:
    """The rows of a comparison that have results, by title."""
    if not (folder / PLAN).exists():
        return {}
    records = read_records(folder)
    by_label = {row.label: row for row in summarize(records).rows}
    labels = [method.label for method in plan.methods(part.config)]
    return {row.title: by_label[label] for label, row in zip(labels, part.rows, strict=True) if label in by_label}


def _cell(column: str, title: str, row: Any, plain: dict[int, float]) -> Cell:
    errors = dict(zip(row.seeds, row.seed_scores, strict=True))
    common = [seed for seed in errors if seed in plain and title != PLAIN]
    test = paired_test([errors[seed] for seed in common], [plain[seed] for seed in common]) if common else None
    values = list(errors.values())
    median = statistics.median(values) if all(map(math.isfinite, values)) else math.nan
    return Cell(
        column, title, mean_interval(values), median, errors, test.difference if test else None, row.step_seconds,
        row.chosen, published_error(column, title),
    )  # fmt: skip
