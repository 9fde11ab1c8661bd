"""The numbers of a comparison in full precision: `summary.csv`."""

from __future__ import annotations

from gradhomog.experiments.analysis.paired_comparison import PairedComparison
from gradhomog.experiments.analysis.statistics import Interval
from gradhomog.experiments.analysis.summary import Summary
from gradhomog.table import Cell, Table, Value


def number_table(summary: Summary) -> Table:
    """One row per method; accuracies are fractions."""
    additional = list(dict.fromkeys(name for row in summary.rows for name in row.additional_scores))
    names = [
        "learner", "label", "homogenizers", "seeds", "expected_seeds", "metric", "mean", "half_width", "n", "unit",
        *_comparison_names(""), "baseline", *_comparison_names("baseline_"), "step_seconds", "chosen",
        *(f"mean[{domain}]" for domain in summary.domains),
        *(["improvement", "improvement_half_width"] if summary.improvement_baseline else []), *additional,
    ]  # fmt: skip
    rows: list[list[Value]] = [
        [
            row.learner, row.label, row.homogenizers, len(row.seeds), row.expected_seeds, summary.metric,
            row.score.mean, row.score.half_width, row.score.n, row.unit, *_comparison_values(row.to_plain),
            row.to_baseline.reference if row.to_baseline else None, *_comparison_values(row.to_baseline),
            row.step_seconds, row.chosen,
            *(row.by_domain[d].mean if d in row.by_domain else None for d in summary.domains),
            *(_mean_and_half_width(row.improvement) if summary.improvement_baseline else ()),
            *(row.additional_scores[name].mean if name in row.additional_scores else None for name in additional),
        ]
        for row in summary.rows
    ]  # fmt: skip
    return Table(names, [[Cell(str(value), value) for value in row] for row in rows])


def _comparison_names(prefix: str) -> list[str]:
    names = ("difference", "difference_half_width", "difference_n", "difference_unit", "p_value", "p_value_holm")
    return [prefix + name for name in (*names, "verdict", "time_ratio", "seeds_needed")]


def _comparison_values(comparison: PairedComparison | None) -> tuple[Value, ...]:
    if comparison is None:
        return (None,) * 9
    difference = comparison.difference
    return (
        difference.mean, difference.half_width, difference.n, comparison.unit, comparison.p_value,
        comparison.adjusted_p_value, comparison.verdict, comparison.time_ratio, comparison.seeds_needed,
    )  # fmt: skip


def _mean_and_half_width(interval: Interval | None) -> tuple[float | None, float | None]:
    return (interval.mean, interval.half_width) if interval else (None, None)
