"""The columns of the tables of methods: header, text of a cell, and the value by which rows are sorted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.paired_comparison import Comparison
from gradhomog.experiments.analysis.rows import Row
from gradhomog.experiments.analysis.statistics import Interval
from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.report.formatting import (
    NOTHING,
    interval_text,
    number_text,
    p_text,
    ratio_text,
    seeds_text,
)
from gradhomog.experiments.results.plan import PLAIN

DELTA_M = "Δm %"

Value = float | str | None
"""A number or a text by which a column is sorted; None sorts last."""


@dataclass(frozen=True)
class Column:
    """A column: `text` is written in a cell, `value` sorts it."""

    title: str
    text: Callable[[Row], str]
    value: Callable[[Row], Value]


def score_columns(summary: Summary) -> list[Column]:
    """Scores of each method, the most important columns first."""
    kind = metric(summary.metric)
    several_units = len({row.unit for row in summary.rows}) > 1

    def score(row: Row) -> str:
        # Intervals over tasks are marked among intervals over seeds: they leave out the variation of trainings.
        one_seed = " †" if several_units and row.unit == "tasks" else ""
        return interval_text(row.score, summary.metric, alone=row.unit == "one") + one_seed

    columns = [
        *_names(summary),
        Column(kind.title, score, lambda row: _number(row.score.mean)),
        _difference("difference to plain", summary, lambda row: row.to_plain),
    ]
    if summary.improvement_baseline:
        columns.append(_interval(DELTA_M, "accuracy", lambda row: row.improvement, signed=True))
    columns += [_also(name, summary.metric) for name in dict.fromkeys(n for row in summary.rows for n in row.also)]
    columns.append(Column("step time", _step_time, lambda row: _ratio(row.to_plain) if row.label != PLAIN else 1.0))
    if len(summary.domains) > 1:
        columns += [_domain(name, summary.metric) for name in summary.domains]
    columns.append(Column("seeds", _seeds, lambda row: len(row.seeds)))
    return columns


def answer_columns(summary: Summary) -> list[Column]:
    """The comparison of each method with the best baseline of its learner."""
    several = len(set(summary.best_baselines.values())) > 1

    def baseline(row: Row) -> str:
        return NOTHING if row.to_baseline is None else row.to_baseline.reference

    columns = [*_names(summary)]
    if several:
        columns.append(Column("best baseline", baseline, baseline))
    title = "difference" if several else f"difference to {next(iter(summary.best_baselines.values()), PLAIN)}"
    return [
        *columns,
        _difference(title, summary, lambda row: row.to_baseline),
        Column("p (Holm)", lambda row: p_text(_p(row.to_baseline)), lambda row: _p(row.to_baseline)),
        Column("step time", lambda row: ratio_text(_ratio(row.to_baseline)), lambda row: _ratio(row.to_baseline)),
        Column(
            f"seeds for {detectable_words(summary)}",
            lambda row: seeds_text(_needed(row.to_baseline)),
            lambda row: _needed(row.to_baseline),
        ),
    ]


def detectable_words(summary: Summary) -> str:
    """The size of difference that the needed number of seeds is for."""
    return "1 point" if metric(summary.metric).percent else "5 % of the score"


def cells(columns: Sequence[Column], row: Row) -> list[str]:
    """The texts of one row."""
    return [column.text(row) for column in columns]


def _names(summary: Summary) -> list[Column]:
    method = Column("method", lambda row: row.label, lambda row: row.label)
    if len(summary.learners) == 1:
        return [method]
    return [Column("learner", lambda row: row.learner, lambda row: row.learner), method]


def _difference(title: str, summary: Summary, comparison: Callable[[Row], Comparison | None]) -> Column:
    def text(row: Row) -> str:
        found = comparison(row)
        if found is None:
            return NOTHING
        mark = " *" if found.verdict in ("better", "worse") else ""
        return interval_text(found.difference, summary.metric, signed=True, alone=found.unit == "one") + mark

    def value(row: Row) -> Value:
        found = comparison(row)
        return None if found is None else _number(found.difference.mean)

    return Column(title, text, value)


def _interval(title: str, kind: str, interval: Callable[[Row], Interval | None], signed: bool = False) -> Column:
    def text(row: Row) -> str:
        found = interval(row)
        return NOTHING if found is None else interval_text(found, kind, signed, alone=row.unit == "one")

    def value(row: Row) -> Value:
        found = interval(row)
        return None if found is None else _number(found.mean)

    return Column(title, text, value)


def _also(name: str, kind: str) -> Column:
    return _interval(name, kind, lambda row: row.also.get(name))


def _domain(name: str, kind: str) -> Column:
    def mean(row: Row) -> float:
        return row.by_domain[name].mean if name in row.by_domain else math.nan

    return Column(
        name,
        lambda row: number_text(mean(row), kind) if name in row.by_domain else NOTHING,
        lambda row: _number(mean(row)),
    )


def _step_time(row: Row) -> str:
    if row.label == PLAIN and row.step_seconds is not None:
        return f"{1000 * row.step_seconds:.3g} ms"
    return ratio_text(_ratio(row.to_plain))


def _seeds(row: Row) -> str:
    if row.expected_seeds is None or row.expected_seeds == len(row.seeds):
        return f"{len(row.seeds)}"
    return f"{len(row.seeds)} of {row.expected_seeds}"


def _p(comparison: Comparison | None) -> float | None:
    return None if comparison is None else comparison.adjusted_p_value


def _ratio(comparison: Comparison | None) -> float | None:
    return None if comparison is None else comparison.time_ratio


def _needed(comparison: Comparison | None) -> int | None:
    return None if comparison is None else comparison.seeds_needed


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
