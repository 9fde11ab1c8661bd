"""The tables of a comparison: scores, differences to the best baseline, candidates of tuned methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from gradhomog.experiments.analysis.method_rows import MethodRow
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.paired_comparison import PairedComparison
from gradhomog.experiments.analysis.statistics import Interval, mean_interval
from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.report.formatting import (
    interval_text,
    number_text,
    p_text,
    ratio_text,
    seeds_text,
)
from gradhomog.experiments.report.notes import notes
from gradhomog.experiments.results.events import Record, numbers
from gradhomog.experiments.results.runs import PLAIN
from gradhomog.table import NOTHING, Cell, Column, Table, Value

DELTA_M = "Δm %"

MethodColumn = Column[MethodRow]


def score_table(summary: Summary) -> Table:
    """Scores of all methods, the most important columns first, with notes about its numbers and missing runs."""
    return _method_table(_score_columns(summary), summary.rows, notes(summary))


def baseline_table(summary: Summary) -> Table:
    """All methods compared with the best baseline, which is not a row of this table."""
    return _method_table(_baseline_columns(summary), [row for row in summary.rows if row.to_baseline is not None])


def candidate_table(summary: Summary) -> Table:
    """The candidates of tuned methods with the scores by which one of them was chosen."""
    several = len(summary.learners) > 1
    kind = metric(summary.metric)
    score = f"validation {kind.title}" if summary.held_out else kind.title
    header = [*(["learner"] if several else []), "candidate", score, "chosen", "method", "at step"]
    rows = [
        [
            *([candidate.learner] if several else []),
            candidate.homogenizers,
            Cell(number_text(candidate.validation, summary.metric), candidate.validation),
            "chosen" if candidate.chosen else "",
            candidate.label,
            NOTHING if candidate.best_step is None else str(candidate.best_step),
        ]
        for candidate in summary.candidates
    ]
    return Table(header, rows, sticky=int(several))


def run_table(summary: Summary, records: Iterable[Record]) -> Table:
    """The runs with a result, in the order of the table and by seed; then the candidates that were not chosen."""
    places = {(row.learner, row.label): place for place, row in enumerate(summary.rows)}
    results = {record["run"]: record for record in records if record["event"] == "result"}  # a chosen one is compared
    kind = metric(summary.metric)

    def place(record: Record) -> tuple[bool, int, int]:
        return record["role"] != "compare", places.get((record["learner"], record["label"]), 0), record["seed"]

    def score(text: str, value: float) -> Cell:
        return Cell(text, _none_if_nan(value))

    header = [summary.score_name("test") + kind.unit, *([summary.score_name("validation")] if summary.held_out else [])]
    rows = []
    for run, record in sorted(results.items(), key=lambda item: place(item[1])):
        scores, validation = mean_interval(numbers(record["scores"])), numbers([record.get("validation")])[0]
        cells = [score(interval_text(scores, summary.metric, mean_only=bool(summary.problem)), scores.mean)]
        if summary.held_out:
            cells.append(score(number_text(validation, summary.metric), validation))
        seconds = record.get("seconds")
        rows.append([
            record["learner"], record["homogenizers"], str(record["seed"]), *cells,
            str(record.get("best_step", NOTHING)), Cell(NOTHING if seconds is None else f"{seconds:.3g} s", seconds),
            f"runs/{run}",
        ])  # fmt: skip
    return Table(["learner", "homogenizers", "seed", *header, "tested step", "training time", "folder"], rows, sticky=1)


def _method_table(columns: Sequence[MethodColumn], rows: Iterable[MethodRow], notes: Sequence[str] = ()) -> Table:
    return Table.of(columns, rows, notes, sticky=[column.title for column in columns].index("method"))


def _score_columns(summary: Summary) -> list[MethodColumn]:
    kind = metric(summary.metric)
    several_units = len({row.unit for row in summary.rows}) > 1

    def score(row: MethodRow) -> str:
        # Mark intervals over tasks if others are over seeds: they do not include the variation between trainings.
        mark = " †" if several_units and row.unit == "tasks" else ""
        return interval_text(row.score, summary.metric, mean_only=row.unit == "one") + mark

    columns = [
        *_name_columns(summary),
        Column(kind.title, score, lambda row: _none_if_nan(row.score.mean)),
        _difference_column("difference to plain", summary, lambda row: row.to_plain),
    ]
    if summary.improvement_baseline:
        columns.append(_interval_column(DELTA_M, "accuracy", lambda row: row.improvement, signed=True))
    additional = dict.fromkeys(name for row in summary.rows for name in row.additional_scores)
    columns += [_additional_column(name, summary.metric) for name in additional]
    columns.append(
        Column("step time", _step_time, lambda row: _time_ratio(row.to_plain) if row.label != PLAIN else 1.0)
    )
    if len(summary.domains) > 1:
        columns += [_domain_column(name, summary.metric) for name in summary.domains]
    columns.append(Column("seeds", _seed_count, lambda row: len(row.seeds)))
    return columns


def _baseline_columns(summary: Summary) -> list[MethodColumn]:
    several = len(set(summary.best_baselines.values())) > 1

    def baseline(row: MethodRow) -> str:
        return NOTHING if row.to_baseline is None else row.to_baseline.reference

    columns = [*_name_columns(summary)]
    if several:
        columns.append(Column("best baseline", baseline, baseline))
    title = "difference" if several else f"difference to {next(iter(summary.best_baselines.values()), PLAIN)}"
    return [
        *columns,
        _difference_column(title, summary, lambda row: row.to_baseline),
        Column("p (Holm)", lambda row: p_text(_p_value(row.to_baseline)), lambda row: _p_value(row.to_baseline)),
        Column(
            "step time",
            lambda row: ratio_text(_time_ratio(row.to_baseline)),
            lambda row: _time_ratio(row.to_baseline),
        ),
        Column(
            f"seeds for {detectable_words(summary)}",
            lambda row: seeds_text(_seeds_needed(row.to_baseline)),
            lambda row: _seeds_needed(row.to_baseline),
        ),
    ]


def detectable_words(summary: Summary) -> str:
    """The size of the difference that `seeds_needed` refers to, in words."""
    return "1 point" if metric(summary.metric).percent else "5 % of the score"


def _name_columns(summary: Summary) -> list[MethodColumn]:
    method: MethodColumn = Column("method", lambda row: row.label, lambda row: row.label)
    if len(summary.learners) == 1:
        return [method]
    return [Column("learner", lambda row: row.learner, lambda row: row.learner), method]


def _difference_column(
    title: str, summary: Summary, get_comparison: Callable[[MethodRow], PairedComparison | None]
) -> MethodColumn:
    def text(row: MethodRow) -> str:
        comparison = get_comparison(row)
        if comparison is None:
            return NOTHING
        mark = " *" if comparison.verdict in ("better", "worse") else ""
        mean_only = comparison.unit == "one"
        return interval_text(comparison.difference, summary.metric, signed=True, mean_only=mean_only) + mark

    def value(row: MethodRow) -> Value:
        comparison = get_comparison(row)
        return None if comparison is None else _none_if_nan(comparison.difference.mean)

    return Column(title, text, value)


def _interval_column(
    title: str, kind: str, get_interval: Callable[[MethodRow], Interval | None], signed: bool = False
) -> MethodColumn:
    def text(row: MethodRow) -> str:
        interval = get_interval(row)
        return NOTHING if interval is None else interval_text(interval, kind, signed, mean_only=row.unit == "one")

    def value(row: MethodRow) -> Value:
        interval = get_interval(row)
        return None if interval is None else _none_if_nan(interval.mean)

    return Column(title, text, value)


def _additional_column(name: str, kind: str) -> MethodColumn:
    return _interval_column(name, kind, lambda row: row.additional_scores.get(name))


def _domain_column(name: str, kind: str) -> MethodColumn:
    def mean(row: MethodRow) -> float:
        return row.by_domain[name].mean if name in row.by_domain else math.nan

    return Column(
        name,
        lambda row: number_text(mean(row), kind) if name in row.by_domain else NOTHING,
        lambda row: _none_if_nan(mean(row)),
    )


def _step_time(row: MethodRow) -> str:
    if row.label == PLAIN and row.step_seconds is not None:
        return f"{1000 * row.step_seconds:.3g} ms"
    return ratio_text(_time_ratio(row.to_plain))


def _seed_count(row: MethodRow) -> str:
    if row.expected_seeds is None or row.expected_seeds == len(row.seeds):
        return f"{len(row.seeds)}"
    return f"{len(row.seeds)} of {row.expected_seeds}"


def _p_value(comparison: PairedComparison | None) -> float | None:
    return None if comparison is None else comparison.adjusted_p_value


def _time_ratio(comparison: PairedComparison | None) -> float | None:
    return None if comparison is None else comparison.time_ratio


def _seeds_needed(comparison: PairedComparison | None) -> int | None:
    return None if comparison is None else comparison.seeds_needed


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value
