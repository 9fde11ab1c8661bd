"""The results of an experiment: our scores, the paper's, and their differences; with averages over columns."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradhomog.experiments.analysis.statistics import (
    Interval,
    Runs,
    compare_runs,
    mean_interval,
    paired_test,
    seeds_needed,
)
from gradhomog.experiments.analysis.summary import MethodRow, runs_by_method, score_columns, summarize
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.reproduce.comparisons import PlannedComparison
from gradhomog.experiments.reproduce.paper_schema import Paper
from gradhomog.experiments.results.comparison_dir import PLAN
from gradhomog.experiments.results.events import Record, json_compatible, numbers
from gradhomog.experiments.results.records import records as read_records
from gradhomog.experiments.runs import PLAIN, SINGLE
from gradhomog.experiments.score_metrics import metric


@dataclass(frozen=True)
class PaperScore:
    """One row in one column. Accuracies are fractions.

    Attributes:
        column, row: titles.
        protocol: name of the column's protocol.
        metric: name of the score.
        ours: mean over seeds of the mean over test tasks, with its 95 % interval over seeds; with one seed over test
            tasks, if they are a sample.
        seed_scores: mean over test tasks, by seed.
        half_width_episodes: half width of the 95 % interval over the test tasks of one training, t(n − 1) · s / √n with
            n − 1 in s, mean over the seeds; NaN for averages and problems.
        to_plain: difference to the row without homogenizers, paired by seed, or by test task if there is one seed; None
            for that row, and without a common seed.
        seeds_needed: number of seeds that detects a difference of one percentage point, or of 5 % of the score, with a
            power of 80 %, from the spread of the differences; None if unknown.
        step_seconds: processor time of a training step; None if unknown.
        chosen: the chosen candidate of a tuned row; None for other rows.
        published: the paper's mean and, if it prints one, spread, of accuracies in percent; None if it prints none.
        is_comparable: True if all data of the paper's column are present and complete.
    """

    column: str
    row: str
    protocol: str
    metric: str
    ours: Interval
    seed_scores: Mapping[int, float]
    half_width_episodes: float = math.nan
    to_plain: Interval | None = None
    seeds_needed: int | None = None
    step_seconds: float | None = None
    chosen: str | None = None
    published: Sequence[float] | None = None
    is_comparable: bool = False

    @property
    def median(self) -> float:
        """The median over seeds; NaN if a score is not finite."""
        values = list(self.seed_scores.values())
        return statistics.median(values) if all(map(math.isfinite, values)) else math.nan

    @property
    def excess(self) -> float | None:
        """Our mean minus the paper's, as a fraction; None if they are not comparable."""
        if self.published is None or not self.is_comparable:
            return None
        return self.ours.mean - self.published[0] / metric(self.metric).factor

    @property
    def ratio(self) -> float | None:
        """Our mean divided by the paper's; None if they are not comparable."""
        if self.published is None or not self.is_comparable:
            return None
        return self.ours.mean * metric(self.metric).factor / self.published[0]

    def record(self, spread: str) -> dict[str, Any]:
        """Return the result for JSON: accuracies in percent; `spread` is that of the paper's numbers."""
        factor, published = metric(self.metric).factor, self.published or []
        return {
            "column": self.column, "row": self.row, "metric": self.metric, "mean": factor * self.ours.mean,
            "half_width": factor * self.ours.half_width, "median": factor * self.median,
            "scores": [factor * score for score in self.seed_scores.values()], "seeds": list(self.seed_scores),
            "half_width_episodes": factor * self.half_width_episodes,
            "difference_to_plain": factor * self.to_plain.mean if self.to_plain else None,
            "difference_half_width": factor * self.to_plain.half_width if self.to_plain else None,
            "seeds_needed": self.seeds_needed, "step_seconds": self.step_seconds, "chosen": self.chosen,
            "published": published[0] if published else None,
            f"published_{spread}": published[1] if len(published) > 1 else None,
            "difference_to_published": None if self.excess is None else factor * self.excess, "ratio": self.ratio,
        }  # fmt: skip


@dataclass(frozen=True)
class PaperScores:
    """The results of an experiment, column by column, and the runs that are missing.

    Attributes:
        experiment: its name.
        rows: the results.
        test_episodes: number of test tasks per training; None if there are no results.
        missing: columns and rows without a result.
    """

    experiment: str
    rows: tuple[PaperScore, ...]
    test_episodes: int | None
    missing: tuple[str, ...]

    def to_json(self, paper: Paper) -> Any:
        """The results as plain dicts and lists; None for unknown numbers."""
        return json_compatible({
            "experiment": self.experiment, "test_episodes": self.test_episodes, "missing": self.missing,
            "cells": [row.record(paper.spread) for row in self.rows],
        })  # fmt: skip


def collect(
    paper: Paper, key: str, planned: Sequence[PlannedComparison], folder: Path, complete: Set[str] = frozenset()
) -> PaperScores:
    """Read the results of all comparisons, finished or not.

    Args:
        key: the experiment.
        folder: the output folder of the experiment.
        complete: benchmarks that are present and complete.

    Raises:
        ConfigError: a file is damaged.
    """
    published = paper.published.get(key, {})
    found: list[PaperScore] = []
    runs_of_rows: dict[str, Runs] = {}
    missing: list[str] = []
    plain: dict[tuple[str, str], Runs] = {}  # of a comparison without a plain row, that of an earlier one of the column
    episodes = None
    for one in planned:
        runs, summaries = _read(folder / one.name)
        place = one.column, one.config.learners[0]
        plain[place] = runs.get(PLAIN) or plain.get(place, {})
        for method, row in zip(make_methods(one.config), one.rows, strict=True):
            if method.label not in runs:
                missing.append(f"{one.column}, {row.title}")
                continue
            runs_of_rows[row.title] = runs[method.label]
            printed = published.get(row.published or "", {}).get(one.column)
            reference = {} if method.label == PLAIN else plain[place]
            score = _score(one, row.title, summaries[method.label], runs[method.label], reference)
            found.append(replace(score, published=printed, is_comparable=complete >= one.used))
            episodes = len(next(iter(runs[method.label].values()))["scores"])
    if blocks := paper.experiments[key].averages:
        found += _averages({**blocks, "": []}, published, found, planned)
    if paper.experiments[key].by_score:
        found = _by_score(published, found, runs_of_rows, planned)
    return PaperScores(key, tuple(found), episodes, tuple(missing))


def _read(folder: Path) -> tuple[dict[str, dict[int, Record]], dict[str, MethodRow]]:
    """The results of a comparison by label and seed, and its rows by label; empty before it begins."""
    if not (folder / PLAN).exists():
        return {}, {}
    records = read_records(folder)
    runs = {label: by_seed for (_, label), by_seed in runs_by_method(records).items()}
    return runs, {row.label: row for row in summarize(records).rows}


def _score(planned: PlannedComparison, title: str, summary: MethodRow, runs: Runs, reference: Runs) -> PaperScore:
    """The score of a row from its runs, paired with those of the plain row."""
    comparison = compare_runs(runs, reference)
    half_widths = [mean_interval(numbers(run["scores"])).half_width for run in runs.values()]
    return PaperScore(
        planned.column, title, planned.protocol, next(iter(runs.values()))["metric"], summary.score,
        dict(zip(summary.seeds, summary.seed_scores, strict=True)), mean_interval(half_widths).mean,
        comparison.difference if comparison else None, comparison.seeds_needed if comparison else None,
        summary.step_seconds,
        summary.chosen,
    )  # fmt: skip


def _by_score(
    published: Mapping[str, Any],
    rows: Sequence[PaperScore],
    runs: Mapping[str, Runs],
    planned: Sequence[PlannedComparison],
) -> list[PaperScore]:
    """The columns of `score_columns` for each row."""
    single = next((runs.get(row.title, {}) for one in planned for row in one.rows if row.homogenizers == SINGLE), {})
    plain = _plain_rows(planned)
    return [
        replace(
            _average(column, row, by_row[row.row], by_row.get(plain.get(row.row, ""), {}), kind),
            published=published.get(row.row, {}).get(column), step_seconds=row.step_seconds, chosen=row.chosen,
            is_comparable=row.is_comparable,
        )
        for (column, kind), by_row in score_columns(runs, single).items() for row in rows if by_row.get(row.row)
    ]  # fmt: skip


def _averages(
    blocks: Mapping[str, Sequence[str]],
    published: Mapping[str, Any],
    scores: Sequence[PaperScore],
    planned: Sequence[PlannedComparison],
) -> list[PaperScore]:
    """Averages over the columns of each block, and over all; only of rows that are in all of them."""
    rows = {row.title: row.published or "" for one in planned for row in one.rows}
    plain = _plain_rows(planned)
    comparable = all(score.is_comparable for score in scores)  # of all benchmarks, or of none
    found = []
    for title, columns in _averaged_columns(blocks, dict.fromkeys(score.column for score in scores)).items():
        cells = {row: [each for each in scores if each.row == row and each.column in columns] for row in rows}
        means = {row: _mean_scores(cells[row], len(columns)) for row in rows}
        found += [
            replace(
                _average(title, cells[row][0], means[row], means.get(plain.get(row, ""), {}), cells[row][0].metric),
                published=published.get(rows[row], {}).get(title), is_comparable=comparable,
            )
            for row in rows if means[row]
        ]  # fmt: skip
    return found


def _plain_rows(planned: Sequence[PlannedComparison]) -> dict[str, str]:
    """The title of the row without homogenizers, by that of each other row of its comparison."""
    return {row.title: plain.title for one in planned for plain in one.rows if plain.homogenizers == "none"
            for row in one.rows if row != plain}  # fmt: skip


def _averaged_columns(blocks: Mapping[str, Sequence[str]], columns: Iterable[str]) -> dict[str, list[str]]:
    """The columns of each average by its title, for each number of shots; those of a block must all be present."""
    by_shots: dict[str, list[str]] = {}
    for column in columns:
        by_shots.setdefault(column.split()[1], []).append(column)
    found = {}
    for name, block in blocks.items():
        for shots, of_shots in by_shots.items():
            chosen = [column for column in of_shots if not name or column.split()[0] in block]
            if len(chosen) >= max(2, len(block)):
                found[f"average {name} {shots}" if name else f"average of {len(chosen)}, {shots}"] = chosen
    return found


def _average(
    title: str, first: PaperScore, scores: Mapping[int, float], plain: Mapping[int, float], kind: str
) -> PaperScore:
    """The score of a row with these values by seed, paired with those of the plain row."""
    common = [seed for seed in scores if seed in plain]
    reference = [plain[seed] for seed in common]
    test = paired_test([scores[seed] for seed in common], reference) if common else None
    detectable = metric(kind).detectable_difference(mean_interval(reference).mean) if common else None
    return PaperScore(
        title, first.row, first.protocol, kind, mean_interval(list(scores.values())), scores,
        to_plain=test.difference if test else None,
        seeds_needed=seeds_needed(detectable, test.deviation) if detectable and test and test.deviation > 0 else None,
    )  # fmt: skip


def _mean_scores(cells: Sequence[PaperScore], columns: int) -> dict[int, float]:
    """The mean over columns by seed, for the seeds that all of them have; empty if a column is missing."""
    if len(cells) < columns:
        return {}
    seeds = set.intersection(*(set(cell.seed_scores) for cell in cells))
    return {seed: sum(cell.seed_scores[seed] for cell in cells) / columns for seed in sorted(seeds)}
