"""Correction of p values for the number of tests: Holm's step-down procedure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradhomog.errors import OptionError


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values in input order: rejecting those ≤ α bounds the probability of any false rejection by α.

    With p₍₁₎ ≤ … ≤ p₍ₘ₎, the adjusted k-th smallest p value is the maximum of min(1, (m − j + 1) p₍ⱼ₎) over j ≤ k. The
    tests may be dependent, as comparisons with one common baseline are.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6. SciPy does not
    implement it.

    Raises:
        OptionError: a p value is not a number from 0 to 1.
    """
    adjusted = [math.nan] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        p = p_values[index]
        if not 0 <= p <= 1:
            raise OptionError(f"`p_values` must be between 0 and 1; got {p}. Omit tests without a p value.")
        largest = max(largest, min(1.0, (len(p_values) - rank) * p))
        adjusted[index] = largest
    return adjusted
