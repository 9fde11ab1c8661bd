"""The rows of the table: one per method, with its scores, and compared with the plain learner and the best baseline."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradhomog.experiments.analysis.improvement import improvement, improvement_baseline
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.paired_comparison import (
    Comparison,
    Runs,
    Unit,
    compare_runs,
    corrected,
    sample,
    step_seconds,
)
from gradhomog.experiments.analysis.statistics import Interval, mean_interval
from gradhomog.experiments.results.events import numbers
from gradhomog.experiments.results.plan import PLAIN

TUNED_STATIC = "static (tuned)"
"""The label of static weights that were chosen on validation tasks."""

BASELINES = (PLAIN, TUNED_STATIC)
"""Methods that a new one has to beat: without homogenization, and with the weights that a search finds."""

Groups = Mapping[tuple[str, str], Runs]
"""Results by learner and label, and by seed."""


@dataclass(frozen=True)
class Row:
    """One method of the table.

    Attributes:
        seeds: those that finished, in increasing order; `expected_seeds` is how many there should be, None if unknown.
        score: mean over seeds of the mean score over test tasks, with its interval over `unit`.
        by_domain: mean and interval for the test tasks of each domain, over `unit`.
        seed_scores: mean over test tasks, one per seed.
        to_plain: the comparison with the plain learner; None for the plain learner, and without a common seed.
        to_baseline: the comparison with the best baseline of the learner; None for that one, and without a common seed.
        step_seconds: mean time of a training step; None if unknown.
        improvement: of a multi-task problem, Δm over `Summary.improvement_baseline`; None for that baseline, and where
            ratios of scores have no meaning.
        also: further numbers of a problem by name, over seeds.
        tuned_from, chosen: pipelines tried on validation tasks, and the chosen one; None if nothing was tuned.
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
    to_plain: Comparison | None = None
    to_baseline: Comparison | None = None
    step_seconds: float | None = None
    improvement: Interval | None = None
    also: dict[str, Interval] = field(default_factory=dict)
    tuned_from: tuple[str, ...] = ()
    chosen: str | None = None


def make_rows(groups: Groups, order: Sequence[tuple[str, str]], expected_seeds: int | None) -> list[Row]:
    """Rows in the given order, with p values corrected over all rows of the table."""
    rows = [_scores(groups[pair], _improvement_runs(groups, pair[0]), expected_seeds) for pair in order]
    if not rows:
        return []
    kind = metric(next(iter(groups[order[0]].values()))["metric"])
    best = best_baselines(rows, kind.higher_is_better)

    def compared(row: Row, reference: str | None) -> Comparison | None:
        if reference is None or row.label == reference or (row.learner, reference) not in groups:
            return None
        return compare_runs(groups[row.learner, row.label], groups[row.learner, reference])

    to_plain = corrected([compared(row, PLAIN) for row in rows], kind.higher_is_better)
    to_baseline = corrected([compared(row, best.get(row.learner)) for row in rows], kind.higher_is_better)
    return [
        dataclasses.replace(row, to_plain=plain, to_baseline=baseline)
        for row, plain, baseline in zip(rows, to_plain, to_baseline, strict=True)
    ]


def best_baselines(rows: Sequence[Row], higher_is_better: bool) -> dict[str, str]:
    """By learner, the label of the baseline with the best score; of equal ones the plain learner."""
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.label != PLAIN):
        if row.label in BASELINES and math.isfinite(row.score.mean):
            other = best.setdefault(row.learner, row)
            if row.score.mean != other.score.mean and (row.score.mean > other.score.mean) == higher_is_better:
                best[row.learner] = row
    return {learner: row.label for learner, row in best.items()}


def _improvement_runs(groups: Groups, learner: str) -> Runs | None:
    """The runs that Δm is over; None where a table has no Δm."""
    label = improvement_baseline(groups, learner)
    return None if label is None else groups[learner, label]


def _scores(runs: Runs, improved: Runs | None, expected_seeds: int | None) -> Row:
    """A method's row without comparisons."""
    seeds = sorted(runs)
    first = runs[seeds[0]]
    scores = [numbers(runs[seed]["scores"]) for seed in seeds]
    sampled = "problem" not in first
    values, unit = sample(scores, sampled)
    domains = first["domains"]
    by_domain = {
        name: mean_interval(sample([_of_domain(name, row, domains) for row in scores], sampled)[0])
        for name in dict.fromkeys(domains)
    }
    return Row(
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
        improvement=None if sampled or improved is None or improved is runs else improvement(runs, improved),
        also={
            name: mean_interval(numbers(runs[seed]["also"].get(name) for seed in seeds))
            for name in first.get("also", ())
        },
        tuned_from=tuple(first.get("tuned_from") or ()),
        chosen=first.get("chosen"),
    )


def _of_domain(name: str, scores: Sequence[float], domains: Sequence[str]) -> list[float]:
    return [score for score, domain in zip(scores, domains, strict=True) if domain == name]
