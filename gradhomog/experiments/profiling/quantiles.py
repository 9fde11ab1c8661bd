"""Median, quartiles and range of measured values, with a confidence interval of the median."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gradhomog.errors import OptionError
from gradhomog.table import LEVEL


@dataclass(frozen=True)
class Quantiles:
    """The median of n values, with its 95 % confidence interval, the quartiles and the range.

    Attributes:
        low, high: the interval of the median; NaN for fewer than six values, which have no interval at 95 %.
    """

    median: float
    low: float
    high: float
    first_quartile: float
    third_quartile: float
    minimum: float
    maximum: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Quantiles:
        """Compute the quantiles of values.

        The interval is that of order statistics: the k-th smallest to the k-th largest value, for the largest k with
        2 · P(Binomial(n, 1/2) < k) ≤ 0.05. It is valid for independent values of any distribution.

        Raises:
            OptionError: `values` is empty.
        """
        if not values:
            raise OptionError("`values` must have at least one number; got none.")
        ordered = sorted(values)
        n = len(ordered)
        rank = _rank(n)
        quartiles = statistics.quantiles(ordered, n=4, method="inclusive") if n > 1 else [ordered[0]] * 3
        return cls(
            statistics.median(ordered),
            ordered[rank - 1] if rank else math.nan,
            ordered[n - rank] if rank else math.nan,
            quartiles[0], quartiles[2], ordered[0], ordered[-1], n,
        )  # fmt: skip

    def record(self) -> dict[str, float | int | None]:
        """Return the fields as a dict for JSON; NaN becomes None, because JSON has no NaN."""
        return {name: None if value != value else value for name, value in vars(self).items()}


def _rank(n: int) -> int:
    """The largest k with 2 · P(Binomial(n, 1/2) < k) ≤ 1 − level; 0 if there is no such k."""
    rank, tail = 0, 0
    while True:
        tail += math.comb(n, rank)
        if 2 * tail > (1 - LEVEL) * 2**n:
            return rank
        rank += 1
