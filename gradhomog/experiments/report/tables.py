"""The tables of a comparison and the notes below them: scores, differences to the best baseline, candidates, runs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gradhomog.errors import in_one_line
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.statistics import Interval, PairedComparison, mean_interval
from gradhomog.experiments.analysis.summary import MethodRow, Summary, to_json
from gradhomog.experiments.results.events import Record, flatten, numbers
from gradhomog.experiments.results.runs import PLAIN
from gradhomog.table import NOTHING, Cell, Column, Table, Value


def notes(summary: Summary) -> list[str]:
    """Lines that explain the intervals, marks and columns of the table, and list missing and failed runs."""
    lines: list[str] = []
    units = {row.unit for row in summary.rows}
    if "seeds" in units:
        counts = sorted({len(row.seeds) for row in summary.rows if row.unit == "seeds"})
        test_data = "test data" if summary.tasks == 1 else f"test data, mean over {summary.tasks} tasks"
        n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        lines.append(
            f"±: 95 % confidence interval over seeds (n = {n}, Student t); every run on the same "
            + (f"{test_data}." if summary.problem else f"{summary.tasks} test tasks.")
        )
    if "tasks" in units:
        mark = "† one seed: " if "seeds" in units else ""
        lines.append(
            f"{mark}±: 95 % confidence interval over test tasks (n = {summary.tasks}, Student t); "
            "it does not include the variation between trainings, because there is one seed."
        )
    if "one" in units:
        lines.append("A method with one run has no interval.")
    if summary.improvement_baseline:
        lines.append(
            f"Δm: relative improvement on {summary.improvement_baseline} in percent, mean over tasks"
            + (", of the errors 1 - R²" if summary.metric == "r2" else "")
            + " (Maninis et al. 2019); paired by seed, higher is better."
        )
    lines += summary.notes
    lines += _difference_notes(summary)
    for row in summary.rows:
        if row.chosen is not None:
            score = "validation score" if summary.held_out else f"{metric(summary.metric).words} in this table"
            count = len(row.tuned_from)
            lines.append(f"{_row_name(row, summary)}: {row.chosen} was chosen from {count} candidates by {score}.")
    busy = " while other runs used the machine" if summary.parallel else ""
    lines.append(f"step time: processor time{busy}; an indication, no benchmark.")
    not_finite = [_row_name(row, summary) for row in summary.rows if math.isnan(row.score.mean)]
    if not_finite:
        lines.append(f"nan: a score is not finite, so there is no mean ({', '.join(not_finite)}).")
    if summary.expected_runs is not None and summary.finished_runs < summary.expected_runs:
        uncounted = "; candidates of tuned methods are not counted" if summary.has_candidate_runs else ""
        lines.append(f"Partial: {summary.finished_runs} of {summary.expected_runs} runs finished{uncounted}.")
    lines += [f"Failed: {run}: {in_one_line(message)}" for run, message in summary.failures.items()]
    return lines


def _difference_notes(summary: Summary) -> list[str]:
    comparisons = [row.to_plain for row in summary.rows if row.to_plain is not None]
    if not comparisons:
        others = any(row.label != PLAIN for row in summary.rows)
        missing = "No differences: they require finished runs of the plain learner and of a method with a common seed."
        return [missing] if others else []
    tested = [comparison for comparison in comparisons if comparison.p_value is not None]
    if not tested:
        return []
    over = {comparison.unit for comparison in tested}
    pairs = (
        "seed" if over == {"seeds"} else "test task" if over == {"tasks"} else "seed (for a single seed, by test task)"
    )
    holm = f", after Holm's correction for {len(tested)} comparisons" if len(tested) > 1 else ""
    return [f"Differences are paired by {pairs}; *: significant at the 5 % level (t test{holm})."]


def _row_name(row: MethodRow, summary: Summary) -> str:
    several = len({other.learner for other in summary.rows}) > 1
    return f"{row.learner}, {row.label}" if several else row.label


MAX_SEEDS = 10_000
"""Larger numbers of seeds are written as `> 10000`."""


def interval_text(interval: Interval, kind: str, signed: bool = False, mean_only: bool = False) -> str:
    """An interval as text: `41.23 ± 1.10` or, if `signed`, `+0.85 ± 1.02`; `± n/a` if the half width is NaN."""
    if math.isnan(interval.mean):
        return "nan"
    mean = number_text(interval.mean, kind, signed)
    if mean_only:
        return mean
    return f"{mean} ± {'n/a' if math.isnan(interval.half_width) else number_text(interval.half_width, kind)}"


def number_text(value: float, kind: str, signed: bool = False) -> str:
    """A score as text: fractions in percent with two decimals, other scores with four significant digits."""
    sign = "+" if signed else ""
    if math.isnan(value):
        return "nan"
    # Adding 0.0 converts −0.00, a small negative number after rounding, to 0.00.
    return f"{round(100 * value, 2) + 0.0:{sign}.2f}" if metric(kind).percent else f"{value + 0.0:{sign}#.4g}"


def p_text(p_value: float | None) -> str:
    """A p value as text: `0.034`, `< 0.001`."""
    if p_value is None:
        return NOTHING
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def ratio_text(ratio: float | None) -> str:
    """A ratio as text: `× 1.20`."""
    return NOTHING if ratio is None else f"× {ratio:.2f}"


def seeds_text(seeds: int | None) -> str:
    """A number of seeds as text: `42`, `> 10000`."""
    if seeds is None:
        return NOTHING
    return f"> {MAX_SEEDS}" if seeds > MAX_SEEDS else f"{seeds}"


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
    columns += [_named_column(name, summary.metric, lambda row: row.additional_scores) for name in additional]
    columns.append(
        Column("step time", _step_time, lambda row: _time_ratio(row.to_plain) if row.label != PLAIN else 1.0)
    )
    if len(summary.domains) > 1:
        columns += [_named_column(name, summary.metric, lambda row: row.by_domain, True) for name in summary.domains]
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
        _number_column("p (Holm)", p_text, lambda row: row.to_baseline and row.to_baseline.adjusted_p_value),
        _number_column("step time", ratio_text, lambda row: row.to_baseline and row.to_baseline.time_ratio),
        _number_column(
            f"seeds for {detectable_words(summary)}",
            seeds_text,
            lambda row: row.to_baseline and row.to_baseline.seeds_needed,
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
    title: str,
    kind: str,
    get_interval: Callable[[MethodRow], Interval | None],
    signed: bool = False,
    mean_only: bool = False,
) -> MethodColumn:
    def text(row: MethodRow) -> str:
        interval = get_interval(row)
        without_width = mean_only or row.unit == "one"
        return NOTHING if interval is None else interval_text(interval, kind, signed, without_width)

    def value(row: MethodRow) -> Value:
        interval = get_interval(row)
        return None if interval is None else _none_if_nan(interval.mean)

    return Column(title, text, value)


def _named_column(
    name: str, kind: str, get_intervals: Callable[[MethodRow], Mapping[str, Interval]], mean_only: bool = False
) -> MethodColumn:
    return _interval_column(name, kind, lambda row: get_intervals(row).get(name), mean_only=mean_only)


def _step_time(row: MethodRow) -> str:
    if row.label == PLAIN and row.step_seconds is not None:
        return f"{1000 * row.step_seconds:.3g} ms"
    return ratio_text(_time_ratio(row.to_plain))


def _seed_count(row: MethodRow) -> str:
    if row.expected_seeds is None or row.expected_seeds == len(row.seeds):
        return f"{len(row.seeds)}"
    return f"{len(row.seeds)} of {row.expected_seeds}"


def _number_column(title: str, text: Callable[[Any], str], get_number: Callable[[MethodRow], Any]) -> MethodColumn:
    return Column(title, lambda row: text(get_number(row)), get_number)


def _time_ratio(comparison: PairedComparison | None) -> float | None:
    return None if comparison is None else comparison.time_ratio


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


def summary_csv(summary: Summary) -> str:
    """The numbers of the rows as CSV, with the keys of the JSON form as columns: `to_plain.difference.mean`."""
    rows = [{"metric": summary.metric, **flatten(row)} for row in to_json(summary)["rows"]]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
