"""Means with confidence intervals, paired t tests and their power, and the comparison of a method with a reference.

Student's t distribution is that of SciPy.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gradhomog.experiments.results.events import Record, numbers
from gradhomog.experiments.score_metrics import metric
from gradhomog.table import LEVEL


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval `mean ± half_width`.

    Attributes:
        mean: mean of the values; NaN if a value is not finite.
        half_width: half the width of the interval; NaN for a single value, and if the mean is NaN.
        n: number of values.
    """

    mean: float
    half_width: float
    n: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width


@dataclass(frozen=True)
class PairedTest:
    """A two-sided paired t test of `a` against `b`.

    Attributes:
        difference: the mean of `a[i] − b[i]` with its interval.
        p_value: NaN if the half width of the interval is NaN. If all differences are equal: 1 if they are 0, else 0.
        deviation: the standard deviation of the differences, with n − 1 in the denominator; NaN if the p value is.
    """

    difference: Interval
    p_value: float
    deviation: float


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values with its confidence interval:

        m ± t(LEVEL, n − 1) · s / √n,    s² = Σ (vᵢ − m)² / (n − 1).

    If a value is not finite, mean and half width are NaN: omitting it would hide a run that diverged.
    """
    mean, deviation = _mean_and_deviation(values)
    n = len(values)
    if math.isnan(deviation):
        return Interval(mean, math.nan, n)
    from scipy import special  # here: light commands do not need it; `scipy.stats` takes half a second more

    return Interval(mean, float(special.stdtrit(n - 1, (1 + LEVEL) / 2)) * deviation / math.sqrt(n), n)


def paired_test(a: Sequence[float], b: Sequence[float]) -> PairedTest:
    """Test the mean of `a[i] − b[i]` against 0; effects of a task or seed that `a` and `b` share cancel."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    mean, deviation = _mean_and_deviation(differences)
    if deviation == 0:  # scipy.stats.ttest_rel divides by it
        p_value = 0.0 if mean else 1.0
    elif math.isnan(deviation):
        p_value = math.nan
    else:
        from scipy import special

        n = len(differences)
        p_value = 2 * float(special.stdtr(n - 1, -abs(mean) / deviation * math.sqrt(n)))
    return PairedTest(mean_interval(differences), p_value, deviation)


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    # In rational numbers: exactly v ± 0 for n equal values v.
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else math.nan


POWER = 0.8
"""The probability of detecting a difference of the given size."""
SIGNIFICANCE = 0.05
"""The significance level of the two-sided test."""


def seeds_needed(difference: float, deviation: float) -> int:
    """The smallest n ≥ 2 for which a paired t test of n seeds has the power `POWER` at the level `SIGNIFICANCE`.

    The test statistic has a noncentral t distribution with n − 1 degrees of freedom and the noncentrality δ √n / s.
    Source: Cohen 1988, Statistical power analysis for the behavioral sciences, chapter 2.

    Args:
        difference: δ > 0, the true mean of the paired differences.
        deviation: s > 0, their standard deviation.
    """
    from scipy import special

    # Two seeds have a power of 0.8 for δ/s ≥ 11.5; SciPy's distribution is inaccurate for much larger noncentralities.
    effect = min(difference / deviation, 20.0)
    # The normal approximation gives about two seeds fewer than Student's t, so it is a start of the search.
    normal = special.ndtri(1 - SIGNIFICANCE / 2) + special.ndtri(POWER)
    n = max(2, math.floor(float(normal / effect) ** 2))
    while paired_power(effect, n) < POWER:
        n += 1
    return n


def paired_power(effect: float, n: int) -> float:
    """The power of a two-sided paired t test of n pairs with a mean difference of `effect` standard deviations."""
    from scipy import special

    critical = special.stdtrit(n - 1, 1 - SIGNIFICANCE / 2)
    noncentrality = effect * math.sqrt(n)
    upper = 1 - special.nctdtr(n - 1, noncentrality, critical)
    return float(upper + special.nctdtr(n - 1, noncentrality, -critical))


def deviation_factors(n: int) -> tuple[float, float]:
    """The 95 % confidence interval of the true standard deviation, as multiples of that of n normal values."""
    from scipy import special

    low, high = special.chdtri(n - 1, [0.025, 0.975])
    return math.sqrt((n - 1) / low), math.sqrt((n - 1) / high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values in input order: rejecting those ≤ α bounds the probability of any false rejection by α.

    With p₍₁₎ ≤ … ≤ p₍ₘ₎, the adjusted k-th smallest p value is the maximum of min(1, (m − j + 1) p₍ⱼ₎) over j ≤ k. The
    tests may be dependent, as comparisons with one common baseline are. NaN, the p value of no test, is not counted.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6. SciPy does not
    implement it.
    """
    adjusted = [math.nan] * len(p_values)
    tested = sorted((p_value, index) for index, p_value in enumerate(p_values) if not math.isnan(p_value))
    largest = 0.0
    for rank, (p_value, index) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * p_value))
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
    p_values = [math.nan if one is None or one.p_value is None else one.p_value for one in comparisons]
    return [
        one if one is None or math.isnan(p_value) else _decided(one, p_value, higher_is_better)
        for one, p_value in zip(comparisons, holm(p_values), strict=True)
    ]


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


def _decided(comparison: PairedComparison, p_value: float, higher_is_better: bool) -> PairedComparison:
    """The comparison with an adjusted p value and the verdict that follows from it."""
    mean = comparison.difference.mean
    verdict: Verdict = "undecided"
    if p_value < SIGNIFICANCE and mean != 0:
        verdict = "better" if (mean > 0) == higher_is_better else "worse"
    return dataclasses.replace(comparison, adjusted_p_value=p_value, verdict=verdict)
