"""Numbers of the table as text: scores, intervals, p values."""

from __future__ import annotations

import math

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.statistics import Interval

NOTHING = "–"
"""A cell without a value."""

MOST_SEEDS = 10_000
"""A larger number of seeds is written as more than this one."""


def interval_text(interval: Interval, kind: str, signed: bool = False, alone: bool = False) -> str:
    """`41.23 ± 1.10`, `+0.85 ± 1.02`; `± n/a` where one value has no spread, and the mean only if `alone`."""
    if math.isnan(interval.mean):
        return "nan"
    mean = number_text(interval.mean, kind, signed)
    if alone:
        return mean
    return f"{mean} ± {'n/a' if math.isnan(interval.half_width) else number_text(interval.half_width, kind)}"


def number_text(value: float, kind: str, signed: bool = False) -> str:
    """A score of a metric: fractions in percent with two decimals, others with four significant digits."""
    sign = "+" if signed else ""
    if math.isnan(value):
        return "nan"
    # Adding 0.0 turns the −0.00 of a rounded small loss into 0.00.
    return f"{round(100 * value, 2) + 0.0:{sign}.2f}" if metric(kind).percent else f"{value + 0.0:{sign}#.4g}"


def p_text(p_value: float | None) -> str:
    """`0.034`, `< 0.001`."""
    if p_value is None:
        return NOTHING
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def ratio_text(ratio: float | None) -> str:
    """`× 1.20`."""
    return NOTHING if ratio is None else f"× {ratio:.2f}"


def seeds_text(seeds: int | None) -> str:
    """`42`, `> 10000`."""
    if seeds is None:
        return NOTHING
    return f"> {MOST_SEEDS}" if seeds > MOST_SEEDS else f"{seeds}"
