"""Means with confidence intervals, paired t tests and their power, with Student's t distribution from SciPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The mean of independent values with its confidence interval:

        m ± t(level, n − 1) · s / √n,    s² = Σ (vᵢ − m)² / (n − 1).

    If a value is not finite, mean and half width are NaN: omitting it would hide a run that diverged.
    """
    mean, deviation = _mean_and_deviation(values)
    return _interval(mean, deviation, len(values), level)


def paired_test(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> PairedTest:
    """Test the mean of `a[i] − b[i]` against 0; effects of a task or seed that `a` and `b` share cancel."""
    n = len(a)
    mean, deviation = _mean_and_deviation([x - y for x, y in zip(a, b, strict=True)])
    if deviation == 0:  # scipy.stats.ttest_rel divides by it
        p_value = 0.0 if mean else 1.0
    elif math.isnan(deviation):
        p_value = math.nan
    else:
        from scipy import stats  # imported here: `import gradhomog` and light commands do not need it

        p_value = 2 * float(stats.t.sf(abs(mean) / deviation * math.sqrt(n), n - 1))
    return PairedTest(_interval(mean, deviation, n, level), p_value, deviation)


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    n = len(values)
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    # The sum of deviations from the first value gives exactly v ± 0 for n equal values v; Σv / n does not.
    first = values[0]
    mean = first + math.fsum(value - first for value in values) / n
    if n == 1:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))


def _interval(mean: float, deviation: float, n: int, level: float) -> Interval:
    if math.isnan(deviation):
        return Interval(mean, math.nan, n)
    from scipy import stats

    return Interval(mean, float(stats.t.ppf((1 + level) / 2, n - 1)) * deviation / math.sqrt(n), n)


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
    from scipy import stats

    # Two seeds have a power of 0.8 for δ/s ≥ 11.5; SciPy's distribution is inaccurate for much larger noncentralities.
    effect = min(difference / deviation, 20.0)
    # The normal approximation gives about two seeds fewer than Student's t, so it is a start of the search.
    normal = stats.norm.ppf(1 - SIGNIFICANCE / 2) + stats.norm.ppf(POWER)
    n = max(2, math.floor(float(normal / effect) ** 2))
    while paired_power(effect, n) < POWER:
        n += 1
    return n


def paired_power(effect: float, n: int) -> float:
    """The power of a two-sided paired t test of n pairs with a mean difference of `effect` standard deviations."""
    from scipy import stats

    critical = stats.t.ppf(1 - SIGNIFICANCE / 2, n - 1)
    noncentrality = effect * math.sqrt(n)
    upper = stats.nct.sf(critical, n - 1, noncentrality)
    return float(upper + stats.nct.cdf(-critical, n - 1, noncentrality))


def deviation_factors(n: int) -> tuple[float, float]:
    """The 95 % confidence interval of the true standard deviation, as multiples of that of n normal values."""
    from scipy import stats

    low, high = stats.chi2.ppf([0.975, 0.025], n - 1)
    return math.sqrt((n - 1) / low), math.sqrt((n - 1) / high)
