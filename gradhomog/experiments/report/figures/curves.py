"""Curves over training: smoothed within a run, averaged over runs; what is missing or not finite is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """Mean over runs at each step, with the lowest and the highest run."""

    steps: list[int]
    middle: list[float]
    low: list[float]
    high: list[float]


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean over `window` values around each (made odd), over fewer at the ends; NaN only where all of them are."""
    half = window // 2
    return [_mean(values[max(0, index - half) : index + half + 1]) for index in range(len(values))]


def average(runs: Sequence[Mapping[int, float]]) -> Curve:
    """The mean over those runs that have a value at a step, given as `{step: value}`."""
    steps = sorted({step for run in runs for step in run})
    middle, low, high = [], [], []
    for step in steps:
        found = [run[step] for run in runs if step in run and math.isfinite(run[step])]
        middle.append(_mean(found))
        low.append(min(found, default=math.nan))
        high.append(max(found, default=math.nan))
    return Curve(steps, middle, low, high)


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
