"""Comparison of a method with a reference method: difference, corrected significance, step time, number of seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.statistics import SIGNIFICANCE, Interval, mean_interval, paired_test, seeds_needed
from gradhomog.experiments.results.events import Record, numbers


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values in input order: rejecting those ≤ α bounds the probability of any false rejection by α.

    With p₍₁₎ ≤ … ≤ p₍ₘ₎, the adjusted k-th smallest p value is the maximum of min(1, (m − j + 1) p₍ⱼ₎) over j ≤ k. The
    tests may be dependent, as comparisons with one common baseline are.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6. SciPy does not
    implement it.
    """
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        p = p_values[index]
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        adjusted[index] = largest
    return adjusted


Runs = Mapping[int, Record]
"""Results of one method by seed."""

Unit = Literal["seeds", "tasks", "one"]
"""The sample of an interval: the mean scores of several seeds ("seeds"), or the test tasks of a single seed ("tasks").
The tasks of a multi-task problem are not a sample of tasks: a single seed is one value ("one") without an interval."""

Verdict = Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class PairedComparison:
    """A method compared with a reference method of the same learner, over the seeds that both have.

    Attributes:
        reference: the label of the reference method.
        difference: method − reference with its interval, paired by seed, or by test task if there is one common seed.
        unit: the sample of that interval.
        p_value: p value of the two-sided paired t test; None without an interval.
        adjusted_p_value: after Holm's correction over the comparisons of the table; None without an interval.
        verdict: "better" or "worse" if the adjusted p value is below 0.05, else "undecided"; None without an interval.
        time_ratio: ratio of the mean times of a training step; None if unknown.
        seeds_needed: the number of seeds that detects a difference of one point or 5 % with a power of 80 %, estimated
            from the spread of the differences; None for a single seed, if all differences are equal, or if ratios of
            scores are not meaningful.
    """

    reference: str
    difference: Interval
    unit: Unit
    p_value: float | None
    adjusted_p_value: float | None
    verdict: Verdict | None
    time_ratio: float | None
    seeds_needed: int | None


def compare_runs(runs: Runs, reference: Runs) -> PairedComparison | None:
    """Compare two methods, without correction for multiple comparisons; None without a common seed."""
    common = sorted(seed for seed in runs if seed in reference)
    if not common:
        return None
    sampled = "problem" not in runs[common[0]]
    scores, unit = independent_values([numbers(runs[seed]["scores"]) for seed in common], sampled)
    reference_scores, _ = independent_values([numbers(reference[seed]["scores"]) for seed in common], sampled)
    test = paired_test(scores, reference_scores)
    p_value = None if math.isnan(test.p_value) else test.p_value
    time, reference_time = step_seconds(runs, common), step_seconds(reference, common)
    detectable = metric(runs[common[0]]["metric"]).detectable_difference(mean_interval(reference_scores).mean)
    has_spread = unit == "seeds" and test.deviation > 0
    return PairedComparison(
        reference=reference[common[0]]["label"],
        difference=test.difference,
        unit=unit,
        p_value=p_value,
        adjusted_p_value=p_value,
        verdict=None,
        time_ratio=time / reference_time if time and reference_time else None,
        seeds_needed=seeds_needed(detectable, test.deviation) if detectable and has_spread else None,
    )


def correct_for_multiple_tests(
    comparisons: Sequence[PairedComparison | None], higher_is_better: bool
) -> list[PairedComparison | None]:
    """The comparisons with verdicts, and with p values adjusted by Holm's procedure over all of them."""
    tested = [comparison for comparison in comparisons if comparison is not None and comparison.p_value is not None]
    adjusted = iter(holm([comparison.p_value for comparison in tested if comparison.p_value is not None]))
    result: list[PairedComparison | None] = []
    for comparison in comparisons:
        if comparison is not None and comparison.p_value is not None:
            p_value = next(adjusted)
            verdict = _verdict(comparison.difference.mean, p_value, higher_is_better)
            result.append(dataclasses.replace(comparison, adjusted_p_value=p_value, verdict=verdict))
        else:
            result.append(comparison)
    return result


def independent_values(scores: Sequence[Sequence[float]], sampled: bool) -> tuple[Sequence[float], Unit]:
    """The independent values in scores `[seeds, tasks]`: the means of several seeds, or the tasks of a single seed.

    Tasks of several seeds are not pooled: the tasks are the same, and scores of one seed depend on the same training.
    `sampled` is True if the tasks are a sample of tasks.
    """
    if len(scores) > 1 or not sampled:
        return [mean_interval(row).mean for row in scores], "seeds" if len(scores) > 1 else "one"
    return scores[0], "tasks"


def step_seconds(runs: Runs, seeds: Sequence[int]) -> float | None:
    """The mean time of a training step over these seeds; None if it is unknown for a seed."""
    mean = mean_interval(numbers(runs[seed].get("step_seconds") for seed in seeds)).mean
    return mean if math.isfinite(mean) else None


def _verdict(difference: float, p_value: float, higher_is_better: bool) -> Verdict:
    if p_value >= SIGNIFICANCE or difference == 0:
        return "undecided"
    return "better" if (difference > 0) == higher_is_better else "worse"
