"""Means with confidence intervals, and paired t tests, by Student's t distribution from SciPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradhomog.errors import OptionError

LEVEL = 0.95
"""The confidence of every interval in tables and figures."""


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval `mean ± half_width`.

    Attributes:
        mean: of the values; NaN if one of them is not finite.
        half_width: NaN for one value, which has no spread, and where the mean is NaN.
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
        p_value: NaN where the interval is; of differences that are all equal 1 if they are 0, else 0.
        deviation: the standard deviation of the differences, with n − 1 in the denominator; NaN as the p value.
    """

    difference: Interval
    p_value: float
    deviation: float


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The mean of independent values with its confidence interval:

        m ± t(level, n − 1) · s / √n,    s² = Σ (vᵢ − m)² / (n − 1).

    A value that is not finite makes mean and half width NaN: leaving it out would hide a run that diverged.

    Raises:
        OptionError: there is no value.
    """
    mean, deviation = _mean_and_deviation(values)
    return _interval(mean, deviation, len(values), level)


def paired_test(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> PairedTest:
    """Test the mean of `a[i] − b[i]` against 0: the effect that a task or a seed has on both cancels.

    Raises:
        OptionError: there is no pair, or the numbers of values differ.
    """
    if len(a) != len(b):
        raise OptionError(f"`a` and `b` must pair up; got {len(a)} and {len(b)} values.")
    n = len(a)
    mean, deviation = _mean_and_deviation([x - y for x, y in zip(a, b, strict=True)])
    if deviation == 0:  # scipy.stats.ttest_rel divides by it
        p_value = 0.0 if mean else 1.0
    elif math.isnan(deviation):
        p_value = math.nan
    else:
        from scipy import stats  # here: `import gradhomog` and the light commands do without it

        p_value = 2 * float(stats.t.sf(abs(mean) / deviation * math.sqrt(n), n - 1))
    return PairedTest(_interval(mean, deviation, n, level), p_value, deviation)


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    n = len(values)
    if n == 0:
        raise OptionError("`values` must hold at least one number; got none.")
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    # Summing deviations from the first value makes n equal values give exactly that value ± 0, which Σv / n does not.
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
