"""The rows of the table: scores of each method, compared with the plain learner and the best baseline, and Δm."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.paired_comparison import (
    PairedComparison,
    Runs,
    Unit,
    compare_runs,
    correct_for_multiple_tests,
    independent_values,
    step_seconds,
)
from gradhomog.experiments.analysis.statistics import Interval, mean_interval
from gradhomog.experiments.results.events import numbers
from gradhomog.experiments.results.runs import PLAIN, SINGLE


def improvement_baseline(groups: Mapping[tuple[str, str], Runs], learner: str) -> str | None:
    """The label of the baseline of Δm: single-task training if the table has it, else the plain learner."""
    return next((label for label in (SINGLE, PLAIN) if (learner, label) in groups), None)


def improvement(runs: Runs, base: Runs) -> Interval | None:
    """Δm = 1/T Σ_t (M_t − B_t) / B_t, with the scores M_t and B_t of task t, averaged over seeds, with its interval.

    Positive is better: for errors the sign is reversed, and R² is converted to the error 1 − R². Runs are paired by
    seed, as for differences. None without a common seed, or if ratios of scores are not meaningful.

    Source: Maninis, Radosavovic & Kokkinos 2019 (arXiv 1904.08918), equation 5, with single-task networks as baseline.
    Papers that call Δm a drop (CAGrad, Nash-MTL, FAMO) use the opposite sign.
    """
    common = sorted(seed for seed in runs if seed in base)
    if not common:
        return None
    measure = metric(runs[common[0]]["metric"])
    if not measure.ratios:
        return None
    values = []
    for seed in common:
        pairs = zip(numbers(runs[seed]["scores"]), numbers(base[seed]["scores"]), strict=True)
        values.append(mean_interval([measure.improvement(score, other) for score, other in pairs]).mean)
    return mean_interval(values)


TUNED_STATIC = "static (tuned)"
"""The label of static weights that were chosen by validation."""

BASELINES = (PLAIN, TUNED_STATIC)
"""The baselines of new methods: the plain learner, and static weights chosen by a search."""

Groups = Mapping[tuple[str, str], Runs]
"""Results by (learner, label), then by seed."""


@dataclass(frozen=True)
class MethodRow:
    """One method of the table.

    Attributes:
        seeds: the seeds that finished, in increasing order.
        expected_seeds: the number of seeds of the comparison; None if unknown.
        score: mean over seeds of the mean score over test tasks, with its interval over `unit`.
        by_domain: mean and interval over `unit` for the test tasks of each domain.
        seed_scores: the mean over test tasks of each seed.
        to_plain: comparison with the plain learner; None for the plain learner, and without a common seed.
        to_baseline: comparison with the best baseline of the learner; None for the best baseline, and without a common
            seed.
        step_seconds: mean time of a training step; None if unknown.
        improvement: for a multi-task problem, Δm on `Summary.improvement_baseline`; None for that baseline, and if
            ratios of scores are not meaningful.
        additional_scores: additional scores of a problem by name, over seeds.
        tuned_from: the pipelines that were candidates of a tuned method.
        chosen: the chosen candidate; None if the method was not tuned.
    """

    learner: str
    label: str
    homogenizers: str
    seeds: tuple[int, ...]
    expected_seeds: int | None
    score: Interval
    unit: Unit
    by_domain: dict[str, Interval]
    seed_scores: tuple[float, ...]
    to_plain: PairedComparison | None = None
    to_baseline: PairedComparison | None = None
    step_seconds: float | None = None
    improvement: Interval | None = None
    additional_scores: dict[str, Interval] = field(default_factory=dict)
    tuned_from: tuple[str, ...] = ()
    chosen: str | None = None


def make_method_rows(groups: Groups, order: Sequence[tuple[str, str]], expected_seeds: int | None) -> list[MethodRow]:
    """Rows in this order, with p values corrected over all rows of the table."""
    rows = [_score_row(groups[pair], _improvement_runs(groups, pair[0]), expected_seeds) for pair in order]
    if not rows:
        return []
    higher_is_better = metric(next(iter(groups[order[0]].values()))["metric"]).higher_is_better
    best = best_baselines(rows, higher_is_better)

    def compare(row: MethodRow, reference: str | None) -> PairedComparison | None:
        if reference is None or row.label == reference or (row.learner, reference) not in groups:
            return None
        return compare_runs(groups[row.learner, row.label], groups[row.learner, reference])

    to_plain = correct_for_multiple_tests([compare(row, PLAIN) for row in rows], higher_is_better)
    to_baseline = correct_for_multiple_tests([compare(row, best.get(row.learner)) for row in rows], higher_is_better)
    return [
        dataclasses.replace(row, to_plain=plain, to_baseline=baseline)
        for row, plain, baseline in zip(rows, to_plain, to_baseline, strict=True)
    ]


def best_baselines(rows: Sequence[MethodRow], higher_is_better: bool) -> dict[str, str]:
    """The label of the baseline with the best score, by learner; the plain learner if scores are equal."""
    best: dict[str, MethodRow] = {}
    for row in sorted(rows, key=lambda row: row.label != PLAIN):
        if row.label in BASELINES and math.isfinite(row.score.mean):
            other = best.setdefault(row.learner, row)
            if row.score.mean != other.score.mean and (row.score.mean > other.score.mean) == higher_is_better:
                best[row.learner] = row
    return {learner: row.label for learner, row in best.items()}


def _improvement_runs(groups: Groups, learner: str) -> Runs | None:
    """The runs of the baseline of Δm; None if the table has no Δm."""
    label = improvement_baseline(groups, learner)
    return None if label is None else groups[learner, label]


def _score_row(runs: Runs, improvement_runs: Runs | None, expected_seeds: int | None) -> MethodRow:
    """The row of a method without comparisons."""
    seeds = sorted(runs)
    first = runs[seeds[0]]
    scores = [numbers(runs[seed]["scores"]) for seed in seeds]
    sampled = "problem" not in first
    values, unit = independent_values(scores, sampled)
    domains = first["domains"]
    by_domain = {
        name: mean_interval(independent_values([_domain_scores(name, row, domains) for row in scores], sampled)[0])
        for name in dict.fromkeys(domains)
    }
    return MethodRow(
        first["learner"],
        first["label"],
        first["homogenizers"],
        tuple(seeds),
        expected_seeds,
        mean_interval(values),
        unit,
        by_domain,
        tuple(mean_interval(row).mean for row in scores),
        step_seconds=step_seconds(runs, seeds),
        improvement=None
        if sampled or improvement_runs is None or improvement_runs is runs
        else improvement(runs, improvement_runs),
        additional_scores={
            name: mean_interval(numbers(runs[seed]["additional_scores"].get(name) for seed in seeds))
            for name in first.get("additional_scores", ())
        },
        tuned_from=tuple(first.get("tuned_from") or ()),
        chosen=first.get("chosen"),
    )


def _domain_scores(name: str, scores: Sequence[float], domains: Sequence[str]) -> list[float]:
    return [score for score, domain in zip(scores, domains, strict=True) if domain == name]
