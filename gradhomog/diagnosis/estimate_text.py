"""Estimates and ratios as text."""

from __future__ import annotations

import math

from gradhomog.diagnosis.estimates import Estimate, TransformedEstimate

UNRESOLVED = "unresolved"


def interval(estimate: Estimate, *index: int, percent: bool = False, digits: int | None = None) -> str:
    """One estimate as text: `0.012 ± 0.004`, in percent `46.6 ± 2.0`, or `unresolved`."""
    value, half_width = float(estimate.value[index]), float(estimate.half_width[index])
    if math.isnan(value):
        return UNRESOLVED
    factor, places = (100, 1) if percent else (1, 3)
    places = places if digits is None else digits
    # Adding 0.0 converts −0.00, a small negative number after rounding, to 0.00.
    return f"{round(factor * value, places) + 0.0:.{places}f} ± {factor * half_width:.{places}f}"


def significant(estimate: Estimate, *index: int) -> str:
    """One estimate of any magnitude as text, to three significant digits: `0.0123 ± 0.0041`, or `unresolved`."""
    value, half_width = float(estimate.value[index]), float(estimate.half_width[index])
    if math.isnan(value):
        return UNRESOLVED
    exponent = math.floor(math.log10(abs(value))) if value else 0
    if -4 <= exponent < 5:
        places = max(0, 2 - exponent)
        return f"{value:.{places}f} ± {half_width:.{places}f}"
    return f"{value:.2e} ± {half_width:.0e}"


def ratio_range(estimate: TransformedEstimate, *index: int, factor: float = 1.0, unit: str = "") -> str:
    """One ratio as text: `16 (11 to 28)`, `16 (> 11)` without an upper end, `> 11` without a value, `unresolved`."""
    value, low, high = (factor * float(part[index]) for part in (estimate.value, estimate.low, estimate.high))
    if math.isnan(value):
        return UNRESOLVED
    if math.isinf(value):
        return f"> {number(low)}{unit}" if 0 < low < math.inf else UNRESOLVED
    return f"{number(value)}{unit} ({f'> {number(low)}' if math.isinf(high) else f'{number(low)} to {number(high)}'})"


def number(value: float) -> str:
    """A non-negative number with about two significant digits: `0`, `0.25`, `1.85`, `4.6`, `16`, `1,200`."""
    if value >= 10:
        return f"{round(value, 1 - math.floor(math.log10(value))):,.0f}"
    if value >= 0.005:
        return f"{value:.1f}" if value >= 2 else f"{value:.2f}"
    return f"{value:.1g}" if value else "0"
