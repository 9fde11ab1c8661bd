"""Δm, the relative improvement on a baseline, averaged over the tasks of a multi-task problem."""

from __future__ import annotations

from collections.abc import Mapping

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.paired_comparison import Runs
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
