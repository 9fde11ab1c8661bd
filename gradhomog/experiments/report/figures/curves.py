"""Curves over training: smoothed within a run, averaged over runs, without missing and non-finite values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradhomog.experiments.analysis.statistics import mean_interval


@dataclass(frozen=True)
class Curve:
    """Mean over runs at each step, with a band: the lowest and the highest run, or the 95 % interval."""

    steps: list[int]
    middle: list[float]
    low: list[float]
    high: list[float]


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of the `window` values around each value; an even window is enlarged by one, and truncated at the ends.

    Non-finite values are omitted; NaN only if all values of a window are.
    """
    half = window // 2
    return [finite_mean(values[max(0, index - half) : index + half + 1]) for index in range(len(values))]


def average(runs: Sequence[Mapping[int, float]]) -> Curve:
    """The mean at each step over the runs `{step: value}` that have this step; the band is the range over runs."""
    steps = sorted({step for run in runs for step in run})
    middle, low, high = [], [], []
    for step in steps:
        values = [run[step] for run in runs if step in run and math.isfinite(run[step])]
        middle.append(finite_mean(values))
        low.append(min(values, default=math.nan))
        high.append(max(values, default=math.nan))
    return Curve(steps, middle, low, high)


def average_with_interval(runs: Sequence[Mapping[int, float]]) -> Curve:
    """As `average`; the band is the 95 % confidence interval, NaN if fewer than two runs have a value."""
    curve = average(runs)
    intervals = []
    for step in curve.steps:
        values = [run[step] for run in runs if step in run and math.isfinite(run[step])]
        intervals.append(mean_interval(values or [math.nan]))
    low, high = [interval.low for interval in intervals], [interval.high for interval in intervals]
    return Curve(curve.steps, curve.middle, low, high)


def finite_mean(values: Sequence[float]) -> float:
    """The mean of the finite values; NaN without any."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
