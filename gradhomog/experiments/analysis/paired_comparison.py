"""The comparison of a method with a reference method: difference, significance, cost, and the seeds it would need."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.multiple_testing import holm
from gradhomog.experiments.analysis.power import SIGNIFICANCE, seeds_needed
from gradhomog.experiments.analysis.statistics import Interval, mean_interval, paired_test
from gradhomog.experiments.results.events import Record, numbers

Runs = Mapping[int, Record]
"""Results of one method by seed."""

Unit = Literal["seeds", "tasks", "one"]
"""The sample of an interval: means of seeds, or with a single seed the test tasks. The tasks of a multi-task problem
are no sample of others: with one seed there is one number ("one"), and no interval."""

Verdict = Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class Comparison:
    """A method against a reference method of the same learner, over the seeds that both have.

    Attributes:
        reference: the label of the reference method.
        difference: method − reference, paired by seed, or with one common seed by test task, with its interval.
        unit: the sample of that interval.
        p_value: of the two-sided paired t test; None without an interval.
        adjusted_p_value: after Holm's correction over the comparisons of the table; None without an interval.
        verdict: "better" or "worse" if the adjusted p value is below 0.05, else "undecided"; None without an interval.
        time_ratio: of the mean times of a training step; None if unknown.
        detectable: the size of difference that `seeds_needed` is for; None where no ratio of scores has a meaning.
        seeds_needed: seeds with which a difference of that size is detected with a power of 80 %, from the observed
            spread; None unless several seeds that differ in their differences were compared.
    """

    reference: str
    difference: Interval
    unit: Unit
    p_value: float | None
    adjusted_p_value: float | None
    verdict: Verdict | None
    time_ratio: float | None
    detectable: float | None
    seeds_needed: int | None


def compare_runs(runs: Runs, reference: Runs) -> Comparison | None:
    """Compare two methods, not yet corrected for other comparisons; None without a common seed."""
    common = sorted(seed for seed in runs if seed in reference)
    if not common:
        return None
    sampled = "problem" not in runs[common[0]]
    ours, unit = sample([numbers(runs[seed]["scores"]) for seed in common], sampled)
    theirs, _ = sample([numbers(reference[seed]["scores"]) for seed in common], sampled)
    test = paired_test(ours, theirs)
    p_value = None if math.isnan(test.p_value) else test.p_value
    our_time, their_time = step_seconds(runs, common), step_seconds(reference, common)
    detectable = metric(runs[common[0]]["metric"]).detectable(mean_interval(theirs).mean)
    spread = unit == "seeds" and test.deviation > 0
    return Comparison(
        reference=reference[common[0]]["label"],
        difference=test.difference,
        unit=unit,
        p_value=p_value,
        adjusted_p_value=p_value,
        verdict=None,
        time_ratio=our_time / their_time if our_time and their_time else None,
        detectable=detectable,
        seeds_needed=seeds_needed(detectable, test.deviation) if detectable and spread else None,
    )


def corrected(comparisons: Sequence[Comparison | None], higher_is_better: bool) -> list[Comparison | None]:
    """The comparisons with p values adjusted by Holm's procedure over all of them, and their verdicts."""
    tested = [found for found in comparisons if found is not None and found.p_value is not None]
    adjusted = iter(holm([found.p_value for found in tested if found.p_value is not None]))
    result: list[Comparison | None] = []
    for found in comparisons:
        if found is not None and found.p_value is not None:
            p_value = next(adjusted)
            verdict = _verdict(found.difference.mean, p_value, higher_is_better)
            found = dataclasses.replace(found, adjusted_p_value=p_value, verdict=verdict)
        result.append(found)
    return result


def sample(scores: Sequence[Sequence[float]], sampled: bool) -> tuple[Sequence[float], Unit]:
    """The independent values behind scores `[seeds, tasks]`: means of several seeds, or the tasks of a single one.

    Tasks of several seeds are not pooled: they are the same tasks, and their scores depend on the same trainings.
    `sampled` is whether the tasks are a sample of tasks.
    """
    if len(scores) > 1 or not sampled:
        return [mean_interval(row).mean for row in scores], "seeds" if len(scores) > 1 else "one"
    return scores[0], "tasks"


def step_seconds(runs: Runs, seeds: Sequence[int]) -> float | None:
    """The mean time of a training step over some seeds; None if it is unknown for one of them."""
    mean = mean_interval(numbers(runs[seed].get("step_seconds") for seed in seeds)).mean
    return mean if math.isfinite(mean) else None


def _verdict(difference: float, p_value: float, higher_is_better: bool) -> Verdict:
    if p_value >= SIGNIFICANCE or difference == 0:
        return "undecided"
    return "better" if (difference > 0) == higher_is_better else "worse"
