"""The notes under the table of a comparison."""

from __future__ import annotations

import math

from gradhomog.blame import in_one_line
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.rows import Row
from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.results.plan import PLAIN


def notes(summary: Summary) -> list[str]:
    """Lines under the table: the meaning of ±, of marks and of columns; runs that are missing or failed."""
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
        mark = "† one seed: " if "seeds" in units else ""
        lines.append(
            f"{mark}±: 95 % confidence interval over test tasks (n = {summary.tasks}, Student t); "
            "one training seed, so the variation between trainings is not in it."
        )
    if "one" in units:
        lines.append("With one run of a method there is no interval.")
    if summary.improvement_baseline:
        lines.append(
            f"Δm: by how many percent tasks are better than with {summary.improvement_baseline}, mean over tasks"
            + (", of their errors 1 - R²" if summary.metric == "r2" else "")
            + " (Maninis et al. 2019); paired by seed, higher is better."
        )
    lines += summary.notes
    lines += _of_differences(summary)
    for row in summary.rows:
        if row.chosen is not None:
            by = "validation" if summary.held_out else f"the {metric(summary.metric).words} in this table"
            lines.append(f"{_named(row, summary)}: {by} chose {row.chosen} among {len(row.tuned_from)}.")
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


def _of_differences(summary: Summary) -> list[str]:
    found = [row.to_plain for row in summary.rows if row.to_plain is not None]
    if not found:
        others = any(row.label != PLAIN for row in summary.rows)
        missing = "No differences: they need finished runs of the plain learner and of another with a common seed."
        return [missing] if others else []
    tested = [comparison for comparison in found if comparison.p_value is not None]
    if not tested:
        return []
    over = {comparison.unit for comparison in tested}
    pairs = "seed" if over == {"seeds"} else "test task" if over == {"tasks"} else "seed, or with one by test task"
    holm = f", after Holm's correction for {len(tested)} comparisons" if len(tested) > 1 else ""
    return [f"Differences are paired by {pairs}; *: significant at the 5 % level (t test{holm})."]


def _named(row: Row, summary: Summary) -> str:
    several = len({other.learner for other in summary.rows}) > 1
    return f"{row.learner}, {row.label}" if several else row.label
