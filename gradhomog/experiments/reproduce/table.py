"""The table of an experiment: our accuracies, the paper's, and the differences; with averages over test domains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradhomog.experiments.analysis.paired_comparison import PairedComparison
from gradhomog.experiments.analysis.power import seeds_needed
from gradhomog.experiments.analysis.rows import MethodRow
from gradhomog.experiments.analysis.statistics import Interval, mean_interval, paired_test
from gradhomog.experiments.analysis.summary import summarize
from gradhomog.experiments.execution import plan
from gradhomog.experiments.reproduce.experiments import Part
from gradhomog.experiments.reproduce.protocol import NAMES, NATURAL, SPECIALIZED
from gradhomog.experiments.reproduce.published import PublishedScore, published_score
from gradhomog.experiments.results.comparison_dir import PLAN
from gradhomog.experiments.results.events import Record, numbers
from gradhomog.experiments.results.plan import PLAIN
from gradhomog.experiments.results.records import records as read_records

ONE_POINT = 0.01
"""The difference, one percentage point, that `Cell.seeds_needed` refers to."""


@dataclass(frozen=True)
class Cell:
    """One row in one column. Accuracies are fractions.

    Attributes:
        column, row: titles.
        ours: mean over seeds of the mean over test episodes, with its 95 % interval over seeds; with one seed over
            episodes.
        seed_scores: mean over test episodes, by seed.
        half_width_episodes: half width of the 95 % interval over the test episodes of one training, t(n − 1) · s / √n
            with n − 1 in s, mean over the seeds; NaN for averages.
        to_plain: difference to the plain learner, paired by seed; None for the plain learner.
        seeds_needed: number of seeds that detects a difference of one point with a power of 80 %, from the spread of
            the differences; None if unknown.
        published: the paper's accuracy in percent.
        is_comparable: True if all data of the paper's column are present and complete.
    """

    column: str
    row: str
    ours: Interval
    seed_scores: dict[int, float]
    half_width_episodes: float
    to_plain: Interval | None
    seeds_needed: int | None
    published: PublishedScore | None
    is_comparable: bool = False

    @property
    def to_published(self) -> float | None:
        """Our mean minus the paper's, as a fraction; None if they are not comparable."""
        if self.published is None or not self.is_comparable:
            return None
        return self.ours.mean - self.published.mean / 100


@dataclass(frozen=True)
class Table:
    """The cells of an experiment, column by column, and the runs that are missing.

    Attributes:
        test_episodes: number of test episodes per training; None if there are no results.
        missing: columns and rows without a result.
    """

    experiment: str
    cells: tuple[Cell, ...]
    test_episodes: int | None
    missing: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.column for cell in self.cells))


def collect(experiment: str, published: str, parts: Sequence[Part], folder: Path, complete: Set[str]) -> Table:
    """Read the results of all parts, finished or not.

    Args:
        published: the paper's table in `published.toml`; empty if there is none.
        folder: the output folder of the experiment.
        complete: benchmarks that are present and complete.

    Raises:
        ConfigError: a file is damaged.
    """
    cells: list[Cell] = []
    missing: list[str] = []
    episodes: int | None = None
    for part in parts:
        titles = {method.label: row for method, row in zip(plan.methods(part.config), part.rows, strict=True)}
        records = read_records(folder / part.name) if (folder / part.name / PLAN).exists() else []
        found = {row.label: row for row in summarize(records).rows} if records else {}
        scores = _scores(records)
        used = part.column.split()[:1] if part.config.domains.setting == "weak" else NAMES
        comparable = complete >= set(used)
        for label, row in titles.items():
            if label not in found:
                missing.append(f"{part.column}, {row.title}")
                continue
            method = found[label]
            episodes = len(next(iter(scores[label].values())))
            number = published_score(published, row.published, part.column) if published and row.published else None
            cells.append(_cell(part.column, row.title, method, scores[label], number, comparable))
    return Table(experiment, (*cells, *_averages(experiment, published, cells, parts)), episodes, tuple(missing))


def to_json(table: Table) -> dict[str, Any]:
    """The table as plain dicts and lists; accuracies in percent, None for unknown numbers."""

    def percent(value: float | None) -> float | None:
        return None if value is None or not math.isfinite(value) else 100 * value

    return {
        "experiment": table.experiment,
        "test_episodes": table.test_episodes,
        "missing": list(table.missing),
        "cells": [
            {
                "column": cell.column, "row": cell.row, "mean": percent(cell.ours.mean),
                "half_width": percent(cell.ours.half_width), "seeds": len(cell.seed_scores),
                "half_width_episodes": percent(cell.half_width_episodes),
                "difference_to_plain": percent(cell.to_plain.mean) if cell.to_plain else None,
                "difference_half_width": percent(cell.to_plain.half_width) if cell.to_plain else None,
                "seeds_needed": cell.seeds_needed,
                "published": cell.published.mean if cell.published else None,
                "published_half_width": cell.published.half_width if cell.published else None,
                "difference_to_published": percent(cell.to_published),
            }
            for cell in table.cells
        ],
    }  # fmt: skip


def _scores(records: Iterable[Record]) -> dict[str, dict[int, list[float]]]:
    """Test scores of each episode, by label and seed."""
    found: dict[str, dict[int, list[float]]] = {}
    for record in records:
        if record["event"] == "result" and record["role"] == "compare":
            found.setdefault(record["label"], {})[record["seed"]] = numbers(record["scores"])
    return found


def _cell(
    column: str, title: str, row: MethodRow, scores: dict[int, list[float]], published: PublishedScore | None,
    is_comparable: bool,
) -> Cell:  # fmt: skip
    half_widths = [mean_interval(values).half_width for values in scores.values()]
    plain: PairedComparison | None = row.to_plain
    return Cell(
        column, title, row.score, dict(zip(row.seeds, row.seed_scores, strict=True)),
        mean_interval(half_widths).mean, plain.difference if plain else None, plain.seeds_needed if plain else None,
        published, is_comparable,
    )  # fmt: skip


def _averages(experiment: str, published: str, cells: Sequence[Cell], parts: Sequence[Part]) -> list[Cell]:
    """Averages over the test domains of a block of Table 2, and over all; only of rows that are in all its columns."""
    if experiment != "strong":
        return []
    found: list[Cell] = []
    plain_of = _plain_titles(parts)
    for name, block in (("average natural", NATURAL), ("average specialized", SPECIALIZED), ("average", ())):
        for shots in dict.fromkeys(cell.column.split()[1] for cell in cells):
            columns = [
                column
                for column in dict.fromkeys(cell.column for cell in cells)
                if column.split()[1] == shots and (not block or column.split()[0] in block)
            ]
            if len(columns) < 2 or (block and len(columns) < len(block)):
                continue
            by_row = {title: _average(cells, title, columns) for title in dict.fromkeys(cell.row for cell in cells)}
            title_of_column = f"{name} {shots}" if block else f"average of {len(columns)}, {shots}"
            for title, scores in by_row.items():
                reference = by_row.get(plain_of.get(title, ""), {})
                cell = _averaged_cell(title_of_column, title, scores, reference)
                if cell is not None:
                    number = published_score(published, title, title_of_column) if published else None
                    comparable = all(each.is_comparable for each in cells)  # of all benchmarks, or of none
                    found.append(replace(cell, published=number, is_comparable=comparable))
    return found


def _plain_titles(parts: Sequence[Part]) -> dict[str, str]:
    """The title of the plain learner's row, for each other row."""
    found: dict[str, str] = {}
    for part in parts:
        labels = [method.label for method in plan.methods(part.config)]
        if PLAIN in labels:
            plain = part.rows[labels.index(PLAIN)].title
            found |= {row.title: plain for row in part.rows if row.title != plain}
    return found


def _average(cells: Sequence[Cell], title: str, columns: Sequence[str]) -> dict[int, float]:
    """The mean over columns by seed, for seeds that all columns have."""
    rows = [cell.seed_scores for cell in cells if cell.row == title and cell.column in columns]
    if len(rows) < len(columns):
        return {}
    seeds = set.intersection(*(set(row) for row in rows))
    return {seed: sum(row[seed] for row in rows) / len(rows) for seed in sorted(seeds)}


def _averaged_cell(column: str, title: str, scores: dict[int, float], reference: dict[int, float]) -> Cell | None:
    if not scores:
        return None
    common = [seed for seed in scores if seed in reference]
    test = paired_test([scores[seed] for seed in common], [reference[seed] for seed in common]) if common else None
    spread = test is not None and test.deviation > 0
    return Cell(
        column, title, mean_interval(list(scores.values())), scores, math.nan, test.difference if test else None,
        seeds_needed(ONE_POINT, test.deviation) if test is not None and spread else None, None,
    )  # fmt: skip
