"""The number of seeds that a paired comparison needs to detect a difference of a given size."""

from __future__ import annotations

import math

from gradhomog.errors import OptionError

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

    Raises:
        OptionError: `difference` or `deviation` is not a positive number.
    """
    for name, value in (("difference", difference), ("deviation", deviation)):
        if not 0 < value < math.inf:
            raise OptionError(f"`{name}` must be a positive number; got {value}.")
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
