"""Curves over training: smoothed within a run, averaged over runs; missing and not finite values are left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradhomog.experiments.analysis.statistics import mean_interval


@dataclass(frozen=True)
class Curve:
    """Mean over runs at each step, with a band around it: the lowest and the highest run, or the 95 % interval."""

    steps: list[int]
    middle: list[float]
    low: list[float]
    high: list[float]


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean over `window` values around each (made odd), over fewer at the ends; NaN only where all of them are."""
    half = window // 2
    return [_mean(values[max(0, index - half) : index + half + 1]) for index in range(len(values))]


def average(runs: Sequence[Mapping[int, float]]) -> Curve:
    """The mean over those runs that have a value at a step, given as `{step: value}`; the band is lowest to highest."""
    steps = sorted({step for run in runs for step in run})
    middle, low, high = [], [], []
    for step in steps:
        found = [run[step] for run in runs if step in run and math.isfinite(run[step])]
        middle.append(_mean(found))
        low.append(min(found, default=math.nan))
        high.append(max(found, default=math.nan))
    return Curve(steps, middle, low, high)


def with_interval(runs: Sequence[Mapping[int, float]]) -> Curve:
    """As `average`; the band is the 95 % confidence interval, NaN where fewer than two runs have a value."""
    curve = average(runs)
    intervals = []
    for step in curve.steps:
        found = [run[step] for run in runs if step in run and math.isfinite(run[step])]
        intervals.append(mean_interval(found or [math.nan]))
    return Curve(curve.steps, curve.middle, [found.low for found in intervals], [found.high for found in intervals])


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
