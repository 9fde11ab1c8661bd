"""Format the tables of a comparison, whose numbers `analysis.summary` computes, and the notes below them."""

import csv
import io
import math
from collections.abc import Callable, Iterable
from typing import Any

from gradhomog.errors import in_one_line
from gradhomog.experiments.analysis.statistics import Interval, PairedComparison, mean_interval
from gradhomog.experiments.analysis.summary import MethodRow, Summary, to_json
from gradhomog.experiments.results.events import Record, numbers
from gradhomog.experiments.run_file.toml import flatten
from gradhomog.experiments.runs import PLAIN
from gradhomog.experiments.score_metrics import metric
from gradhomog.table import NOTHING, Cell, Table
from gradhomog.terminal import escape_controls


def notes(summary: Summary) -> list[str]:
    """Lines that explain the intervals, marks and columns of the table, and list missing and failed runs."""
    busy = " while other runs used the machine" if summary.parallel else ""
    errors = ", of the errors 1 - R²" if summary.metric == "r2" else ""
    scores = "named scores" if summary.additional_metrics else "tasks"
    improvement = (
        f"Δm: relative improvement on {summary.improvement_baseline} in percent, mean over {scores}{errors} "
        "(Maninis et al. 2019); paired by seed, higher is better."
    )
    chosen_by = "validation score" if summary.held_out else f"{metric(summary.metric).words} in this table"
    return [
        *_interval_notes(summary),
        *([improvement] if summary.improvement_baseline else []),
        *summary.notes,
        *_difference_notes(summary),
        *(
            f"{_row_name(row, summary)}: {row.chosen} was chosen from {len(row.tuned_from)} candidates by {chosen_by}."
            for row in summary.rows
            if row.chosen is not None
        ),
        f"step time: processor time{busy}; an indication, no benchmark.",
        *_missing_notes(summary),
    ]


def _interval_notes(summary: Summary) -> list[str]:
    lines: list[str] = []
    units = {row.unit for row in summary.rows}
    if "seeds" in units:
        counts = sorted({len(row.seeds) for row in summary.rows if row.unit == "seeds"})
        n = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        tested = f"{summary.tasks} test tasks"
        if summary.problem:
            tested = "test data" if summary.tasks == 1 else f"test data, mean over {summary.tasks} tasks"
        lines.append(f"±: 95 % confidence interval over seeds (n = {n}, Student t); every run on the same {tested}.")
    if "tasks" in units:
        mark = "† one seed: " if "seeds" in units else ""
        lines.append(
            f"{mark}±: 95 % confidence interval over test tasks (n = {summary.tasks}, Student t); "
            "it does not include the variation between trainings, because there is one seed."
        )
    if "one" in units:
        lines.append("A method with one run has no interval.")
    return lines


def _missing_notes(summary: Summary) -> list[str]:
    lines = []
    if not_finite := [_row_name(row, summary) for row in summary.rows if math.isnan(row.score.mean)]:
        lines.append(f"nan: a score is not finite, so there is no mean ({', '.join(not_finite)}).")
    if summary.finished_runs < summary.expected_runs:
        uncounted = "; candidates of tuned methods are not counted" if summary.has_candidate_runs else ""
        lines.append(f"Partial: {summary.finished_runs} of {summary.expected_runs} runs finished{uncounted}.")
    return lines + [f"Failed: {run}: {in_one_line(message)}" for run, message in summary.failures.items()]


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
    return ", ".join(_names(row, summary))


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


def ratio_text(ratio: float) -> str:
    """A ratio as text: `× 1.20`."""
    return f"× {ratio:.2f}"


def seeds_text(seeds: int) -> str:
    """A number of seeds as text: `42`, `> 10000`."""
    return f"> {MAX_SEEDS}" if seeds > MAX_SEEDS else f"{seeds}"


def score_table(summary: Summary) -> Table:
    """Scores of all methods, the most important columns first, with notes about its numbers and missing runs."""
    kind, several_units = summary.metric, len({row.unit for row in summary.rows}) > 1
    additional = {name: summary.additional_metrics.get(name, kind)
                  for row in summary.rows for name in row.additional_scores}  # fmt: skip
    domains = summary.domains if len(summary.domains) > 1 else ()
    delta_m = ["Δm %"] if summary.improvement_baseline else []
    scores = [metric(kind).title, "difference to plain", *delta_m]
    scores += [name + metric(own).unit * (name in summary.additional_metrics) for name, own in additional.items()]
    header = [*_name_titles(summary), *scores, "step time", *domains, "seeds"]
    rows: list[list[Cell | str]] = []
    for row in summary.rows:
        # Mark intervals over tasks if others are over seeds: they do not include the variation between trainings.
        mark = " †" if several_units and row.unit == "tasks" else ""
        one, count = row.unit == "one", len(row.seeds)
        rows.append([
            *_names(row, summary),
            interval_cell(row.score, kind, mean_only=one, mark=mark),
            _difference_cell(row.to_plain, kind),
            *(interval_cell(row.improvement, "accuracy", signed=True, mean_only=one) for _ in delta_m),
            *(interval_cell(row.additional_scores.get(name), own, mean_only=one) for name, own in additional.items()),
            _step_time(row),
            *(interval_cell(row.by_domain.get(name), kind, mean_only=True) for name in domains),
            Cell(f"{count}" if count == row.expected_seeds else f"{count} of {row.expected_seeds}", count),
        ])  # fmt: skip
    return Table(header, rows, notes(summary), sticky=header.index("method"))


def baseline_table(summary: Summary) -> Table:
    """All methods compared with the best baseline, which is not a row of this table."""
    labels = set(summary.best_baselines.values())
    several = len(labels) > 1
    titles = ["best baseline", "difference"] if several else [f"difference to {next(iter(labels), PLAIN)}"]
    header = [*_name_titles(summary), *titles, "p (Holm)", "step time", f"seeds for {detectable_words(summary)}"]
    rows: list[list[Cell | str]] = [
        [
            *_names(row, summary),
            *([comparison.reference] if several else []),
            _difference_cell(comparison, summary.metric),
            number_cell(comparison.adjusted_p_value, p_text),
            number_cell(comparison.time_ratio, ratio_text),
            number_cell(comparison.seeds_needed, seeds_text),
        ]
        for row in summary.rows
        if (comparison := row.to_baseline) is not None
    ]
    return Table(header, rows, sticky=header.index("method"))


def detectable_words(summary: Summary) -> str:
    """The size of the difference that `seeds_needed` refers to, in words."""
    return "1 point" if metric(summary.metric).percent else "5 % of the score"


def _name_titles(summary: Summary) -> list[str]:
    return ["method"] if len(summary.learners) == 1 else ["learner", "method"]


def _names(row: MethodRow, summary: Summary) -> list[str]:
    return [row.label] if len(summary.learners) == 1 else [row.learner, row.label]


def interval_cell(
    interval: Interval | None, kind: str, *, signed: bool = False, mean_only: bool = False, mark: str = ""
) -> Cell:
    """The cell of an interval; `NOTHING` if it is None."""
    if interval is None:
        return Cell(NOTHING)
    return Cell(interval_text(interval, kind, signed, mean_only) + mark, interval.mean)


def _difference_cell(comparison: PairedComparison | None, kind: str) -> Cell:
    if comparison is None:
        return Cell(NOTHING)
    mark = " *" if comparison.verdict in ("better", "worse") else ""
    return interval_cell(comparison.difference, kind, signed=True, mean_only=comparison.unit == "one", mark=mark)


def number_cell(value: Any, text: Callable[[Any], str]) -> Cell:
    """The cell of a number; `NOTHING` if it is None or NaN."""
    return Cell(NOTHING if value is None or value != value else text(value), value)


def _step_time(row: MethodRow) -> Cell:
    """The time of the plain learner, and the ratios of others to it."""
    if row.label == PLAIN:
        return Cell(NOTHING if row.step_seconds is None else f"{1000 * row.step_seconds:.3g} ms", 1.0)
    return number_cell(row.to_plain and row.to_plain.time_ratio, ratio_text)


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
            str(candidate.best_step),
        ]
        for candidate in summary.candidates
    ]
    return Table(header, rows, sticky=int(several))


def run_table(summary: Summary, records: Iterable[Record]) -> Table:
    """The runs with a result, in the order of the table and by seed; then the candidates that were not chosen."""
    results = {record["run"]: record for record in records if record["event"] == "result"}  # a chosen one is compared
    kind = metric(summary.metric)

    header = [summary.score_name("test") + kind.unit, *([summary.score_name("validation")] if summary.held_out else [])]
    rows = []
    for run, record in sorted(results.items(), key=lambda item: item[1]["role"] != "compare"):
        scores, (validation,) = mean_interval(numbers(record["scores"])), numbers([record["validation"]])
        cells = [Cell(interval_text(scores, summary.metric, mean_only=bool(summary.problem)), scores.mean)]
        if summary.held_out:
            cells.append(Cell(number_text(validation, summary.metric), validation))
        rows.append([
            record["learner"], record["homogenizers"], str(record["seed"]), *cells,
            str(record["best_step"]), number_cell(record["seconds"], "{:.3g} s".format),
            f"runs/{run}",
        ])  # fmt: skip
    return Table(["learner", "homogenizers", "seed", *header, "tested step", "training time", "folder"], rows, sticky=1)


def summary_csv(summary: Summary) -> str:
    """The numbers of the rows as CSV, with the keys of the JSON form as columns: `to_plain.difference.mean`."""
    rows = [
        {_csv_text(key): _csv_text(value) if isinstance(value, str) else value for key, value in flatten(row).items()}
        for row in ({"metric": summary.metric, **row} for row in to_json(summary)["rows"])
    ]
    file = io.StringIO()
    writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _csv_text(text: str) -> str:
    """A text without control characters; after an apostrophe if a spreadsheet would execute it as a formula."""
    text = escape_controls(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
