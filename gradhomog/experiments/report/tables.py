"""The table of a comparison as text and as CSV: numbers formatted, what ± means said under it."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradhomog.blame import in_one_line
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.statistics import Interval
from gradhomog.experiments.results.plan import PLAIN

if TYPE_CHECKING:
    from gradhomog.experiments.analysis.summary import Row, Summary

NOTHING = "–"
DELTA_M = "Δm %"


def render_table(summary: Summary) -> str:
    """The table as aligned plain text, with the meaning of ± and what is missing under it."""
    if not summary.rows:
        return "\n".join(["No run has finished, so there is no table.", *notes(summary)])
    lines = [*aligned([header(summary), *(cells(summary, row) for row in summary.rows)])]
    return "\n".join([*lines, "", *notes(summary)])


def header(summary: Summary) -> list[str]:
    """Names of the columns."""
    several = ["learner"] if len(summary.learners) > 1 else []
    domains = list(summary.domains) if len(summary.domains) > 1 else []
    score = metric(summary.metric).title
    return [*several, "method", "seeds", score, "difference to plain", *_more(summary), *domains, "step time"]


def cells(summary: Summary, row: Row) -> list[str]:
    """One row of the table, as texts."""
    several = [row.learner] if len(summary.learners) > 1 else []
    seeds = f"{len(row.seeds)}"
    if row.expected_seeds is not None and row.expected_seeds != len(row.seeds):
        seeds += f" of {row.expected_seeds}"
    alone = row.unit == "one"
    difference = NOTHING
    if row.difference is not None:
        difference = interval_text(row.difference, summary.metric, signed=True, alone=row.difference_unit == "one")
    more = [
        NOTHING
        if (found := row.improvement if title == DELTA_M else row.also.get(title)) is None
        else interval_text(found, "accuracy" if title == DELTA_M else summary.metric, title == DELTA_M, alone)
        for title in _more(summary)
    ]
    domains = [
        number_text(row.by_domain[name].mean, summary.metric) if name in row.by_domain else NOTHING
        for name in summary.domains
        if len(summary.domains) > 1
    ]
    ratio = NOTHING if row.time_ratio is None else f"× {row.time_ratio:.2f}"
    if row.label == PLAIN and row.step_seconds is not None:
        ratio = f"{1000 * row.step_seconds:.3g} ms"
    mark = " *" if row.verdict in ("better", "worse") else ""
    # Of rows in one table, those over tasks are marked if others are over seeds: their intervals leave out more.
    mixed = len({r.unit for r in summary.rows}) > 1
    one_seed = " †" if mixed and row.unit == "tasks" else ""
    return [
        *several,
        row.label,
        seeds,
        interval_text(row.score, summary.metric, alone=alone) + one_seed,
        difference + mark,
        *more,
        *domains,
        ratio,
    ]


def _more(summary: Summary) -> list[str]:
    """Columns that only multi-task problems have."""
    named = dict.fromkeys(name for row in summary.rows for name in row.also)
    return [*([DELTA_M] if summary.baseline else []), *named]


def notes(summary: Summary) -> list[str]:
    """Lines under the table: what ± is, over what, and what it leaves out; what is missing."""
    lines: list[str] = []
    units = {row.unit for row in summary.rows}
    if "seeds" in units:
        counts = sorted({len(row.seeds) for row in summary.rows if row.unit == "seeds"})
        n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        lines.append(
            f"±: 95 % confidence interval over seeds (n = {n}, Student t); every run on the same "
            + (f"test data, mean over {summary.tasks} tasks." if summary.problem else f"{summary.tasks} test tasks.")
        )
    if "tasks" in units:
        who = "† one seed: " if "seeds" in units else ""
        lines.append(
            f"{who}±: 95 % confidence interval over test tasks (n = {summary.tasks}, Student t); "
            "one training seed, so how much another training would differ is not in it."
        )
    if "one" in units:
        lines.append("With one run of a method there is no interval.")
    if summary.baseline:
        lines.append(
            f"Δm: by how many percent tasks are better than with {summary.baseline}, mean over tasks"
            + (", of their errors 1 - R²" if summary.metric == "r2" else "")
            + " (Maninis et al. 2019); paired by seed, higher is better."
        )
    lines += summary.notes
    how = {row.difference_unit for row in summary.rows if row.difference is not None}
    if how - {"one"}:
        paired = (
            "seed"
            if how == {"seeds"}
            else "test task"
            if how == {"tasks"}
            else "seed, or with one common seed by test task"
        )
        lines.append(
            f"Differences are paired by {paired}; *: the interval excludes 0 (not corrected for the number of methods)."
        )
    elif not how and any(row.label != PLAIN for row in summary.rows):
        lines.append("No differences: they need finished runs of the plain learner and of another with a common seed.")
    for row in summary.rows:
        if row.chosen is not None:
            who = "validation" if summary.held_out else f"the {metric(summary.metric).words} in this table"
            lines.append(f"{_named(row, summary)}: {who} chose {row.chosen} among {len(row.tuned_from)}.")
    busy = " while other runs used the machine" if summary.parallel else ""
    lines.append(f"step time: processor time{busy}; an indication, no benchmark.")
    lines += [str(found) for found in summary.slow]
    broken = [_named(row, summary) for row in summary.rows if math.isnan(row.score.mean)]
    if broken:
        lines.append(f"nan: a score is not finite, so no mean is given ({', '.join(broken)}).")
    if summary.expected is not None and summary.finished < summary.expected:
        uncounted = "; candidates of what is tuned are not counted" if summary.tried else ""
        lines.append(f"Partial: {summary.finished} of {summary.expected} runs finished{uncounted}.")
    lines += [f"Failed: {run}: {in_one_line(message)}" for run, message in summary.failures.items()]
    return lines


def _named(row: Row, summary: Summary) -> str:
    several = len({other.learner for other in summary.rows}) > 1
    return f"{row.learner}, {row.label}" if several else row.label


def interval_text(interval: Interval, kind: str, signed: bool = False, alone: bool = False) -> str:
    """`41.23 ± 1.10`, `+0.85 ± 1.02`; `± n/a` where one value says nothing about its spread, and nothing if `alone`."""
    if math.isnan(interval.mean):
        return "nan"
    mean = number_text(interval.mean, kind, signed)
    if alone:
        return mean
    return f"{mean} ± {'n/a' if math.isnan(interval.half_width) else number_text(interval.half_width, kind)}"


def number_text(value: float, kind: str, signed: bool = False) -> str:
    """A score of a metric: shares in percent with two decimals, others with four significant digits."""
    sign = "+" if signed else ""
    if math.isnan(value):
        return "nan"
    # Adding 0.0 turns the −0.00 of a rounded small loss into 0.00.
    return f"{round(100 * value, 2) + 0.0:{sign}.2f}" if metric(kind).percent else f"{value + 0.0:{sign}#.4g}"


def write_csv(summary: Summary, path: str | Path) -> None:
    """Write one line per method, numbers in full and as fractions; empty where unknown."""
    also = list(dict.fromkeys(name for row in summary.rows for name in row.also))
    names = [
        "learner", "label", "homogenizers", "seeds", "expected_seeds", "metric", "mean", "half_width", "n", "unit",
        "difference", "difference_half_width", "difference_n", "difference_unit", "verdict", "step_seconds",
        "time_ratio", "chosen", *(f"mean[{domain}]" for domain in summary.domains),
        *(["improvement", "improvement_half_width"] if summary.baseline else []), *also,
    ]  # fmt: skip
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for row in summary.rows:
            gap = row.difference
            values = [
                row.learner, row.label, row.homogenizers, len(row.seeds), row.expected_seeds, summary.metric,
                row.score.mean, row.score.half_width, row.score.n, row.unit,
                *((gap.mean, gap.half_width, gap.n, row.difference_unit) if gap else (None,) * 4),
                row.verdict, row.step_seconds, row.time_ratio, row.chosen,
                *(row.by_domain[d].mean if d in row.by_domain else None for d in summary.domains),
                *(_pair(row.improvement) if summary.baseline else ()),
                *(row.also[name].mean if name in row.also else None for name in also),
            ]  # fmt: skip
            writer.writerow(["" if value is None or value != value else value for value in values])


def _pair(interval: Interval | None) -> tuple[float | None, float | None]:
    return (interval.mean, interval.half_width) if interval else (None, None)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns padded to equal width, with a rule under the header; `±` stands under `±` where a column has it."""
    columns = [_stacked(column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
    return [lines[0], "─" * max(map(len, lines)), *lines[1:]]


def _stacked(column: Sequence[str]) -> list[str]:
    if not any("±" in cell for cell in column[1:]):
        width = max(map(len, column))
        return [cell.ljust(width) for cell in column]
    parts = [cell.partition(" ±") for cell in column]
    left = max(len(mean) for mean, bar, _ in parts if bar)
    padded = [column[0], *(mean.rjust(left) + bar + rest for mean, bar, rest in parts[1:])]
    width = max(map(len, padded))
    return [cell.ljust(width) for cell in padded]
