"""Numbers of the table as text: scores, intervals, p values, ratios."""

from __future__ import annotations

import math

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.statistics import Interval
from gradhomog.table import NOTHING

MAX_SEEDS = 10_000
"""Larger numbers of seeds are written as `> 10000`."""


def interval_text(interval: Interval, kind: str, signed: bool = False, mean_only: bool = False) -> str:
    """An interval as text: `41.23 ± 1.10` or, if `signed`, `+0.85 ± 1.02`; `± n/a` if the half width is NaN."""
    if math.isnan(interval.mean):
        return "nan"
    mean = number_text(interval.mean, kind, signed)
    if mean_only:
        return mean
    return f"{mean} ± {'n/a' if math.isnan(interval.half_width) else number_text(interval.half_width, kind)}"


def number_text(value: float, kind: str, signed: bool = False) -> str:
    """A score as text: fractions in percent with two decimals, other scores with four significant digits."""
    sign = "+" if signed else ""
    if math.isnan(value):
        return "nan"
    # Adding 0.0 converts −0.00, a small negative number after rounding, to 0.00.
    return f"{round(100 * value, 2) + 0.0:{sign}.2f}" if metric(kind).percent else f"{value + 0.0:{sign}#.4g}"


def p_text(p_value: float | None) -> str:
    """A p value as text: `0.034`, `< 0.001`."""
    if p_value is None:
        return NOTHING
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def ratio_text(ratio: float | None) -> str:
    """A ratio as text: `× 1.20`."""
    return NOTHING if ratio is None else f"× {ratio:.2f}"


def seeds_text(seeds: int | None) -> str:
    """A number of seeds as text: `42`, `> 10000`."""
    if seeds is None:
        return NOTHING
    return f"> {MAX_SEEDS}" if seeds > MAX_SEEDS else f"{seeds}"
