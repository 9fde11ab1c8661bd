"""Means with confidence intervals, and paired differences, by Student's t; plain Python, no SciPy."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradhomog.errors import OptionError

LEVEL = 0.95
"""The confidence of every interval in tables and figures."""


@dataclass(frozen=True)
class Interval:
    """A mean and how well it is known: with 95 % confidence the expectation lies in `mean ± half_width`.

    Attributes:
        mean: of the values; NaN if one of them is not finite.
        half_width: NaN for one value, about which nothing can be said, and where the mean is NaN.
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

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside the interval; False where the half width is NaN."""
        return abs(self.mean) > self.half_width


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The mean of independent values with its confidence interval:

        m ± t(level, n − 1) · s / √n,    s² = Σ (vᵢ − m)² / (n − 1).

    A value that is not finite makes mean and half width NaN: leaving it out would hide a run that diverged.

    Raises:
        OptionError: there is no value.
    """
    n = len(values)
    if n == 0:
        raise OptionError("`values` must hold at least one number; got none.")
    if not all(map(math.isfinite, values)):
        return Interval(math.nan, math.nan, n)
    # Summing deviations from the first value makes n equal values give exactly that value ± 0, which Σv / n does not.
    first = values[0]
    mean = first + math.fsum(value - first for value in values) / n
    if n == 1:
        return Interval(mean, math.nan, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return Interval(mean, t_quantile(level, n - 1) * deviation / math.sqrt(n), n)


def paired_interval(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> Interval:
    """The interval of the mean of `a[i] − b[i]`: what a and b have in common, a task or a seed, cancels.

    Raises:
        OptionError: there is no pair, or the numbers of values differ.
    """
    if len(a) != len(b):
        raise OptionError(f"`a` and `b` must pair up; got {len(a)} and {len(b)} values.")
    return mean_interval([x - y for x, y in zip(a, b, strict=True)], level)


@functools.cache
def t_quantile(level: float, degrees: int) -> float:
    """The t for which `P(|T| ≤ t) = level`, T of Student's distribution with a whole number ν of degrees of freedom.

    Bisection of the closed form of A(t|ν) in the angle θ = arctan(t/√ν), which is bounded where t is not, until the two
    ends are neighbouring floats. Cost O(ν) a halving, about 60 halvings, remembered.
    """
    if not 0 < level < 1 or degrees < 1:
        raise OptionError(
            f"`level` must lie between 0 and 1 and `degrees` be at least 1; got {level} and {degrees}. "
            "The interval of a mean has n - 1 degrees of freedom."
        )
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _probability(middle, degrees) < level:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(high)


def _probability(theta: float, degrees: int) -> float:
    """A(t|ν) = P(|T| ≤ t) with t = √ν tan θ: Abramowitz & Stegun (1964), 26.7.3 for odd ν and 26.7.4 for even ν.

    odd:   2/π {θ + sin θ [cos θ + 2/3 cos³θ + … + (2·4⋯(ν−3))/(3·5⋯(ν−2)) cos^(ν−2) θ]},   2θ/π for ν = 1
    even:  sin θ {1 + 1/2 cos²θ + (1·3)/(2·4) cos⁴θ + … + (1·3⋯(ν−3))/(2·4⋯(ν−2)) cos^(ν−2) θ}
    """
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for index in range(1, degrees // 2 + 1):
        total += term
        term *= cosine**2 * (2 * index / (2 * index + 1) if odd else (2 * index - 1) / (2 * index))
    return 2 / math.pi * (theta + sine * total) if odd else sine * total
