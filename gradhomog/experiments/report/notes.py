"""Notes below the table of a comparison."""

from __future__ import annotations

import math

from gradhomog.errors import in_one_line
from gradhomog.experiments.analysis.method_rows import MethodRow
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.results.runs import PLAIN


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
    lines += [str(homogenizer) for homogenizer in summary.slow_homogenizers]
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
