"""Small line charts as SVG, drawn without matplotlib: a page has two for each run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 300, 120
"""Of the plot, in units of the SVG, which are pixels at full size."""

MOST_POINTS = 100
"""A longer curve is drawn as the means of this many groups of neighbouring steps."""


Point = tuple[float, float, float]
"""Step, value, and half the width of its interval."""


@dataclass(frozen=True)
class Chart:
    """Coordinates and labels of a chart.

    Attributes:
        points: `x,y` pairs of the line; `band` those of the polygon around it, empty without intervals.
        dots: coordinates of single points, empty where the line has many.
        low, high: values at the bottom and the top; `first` and `last` are steps at the left and the right.
    """

    title: str
    points: str
    band: str
    dots: Sequence[tuple[float, float]]
    low: str
    high: str
    first: str
    last: str


def line_chart(title: str, points: Sequence[tuple[int, float]], half_widths: Sequence[float] = ()) -> Chart | None:
    """A chart of `(step, value)` pairs, with a band of `value ± half_width`; None without a finite value.

    Values that are not finite are left out.
    """
    widths = [width if math.isfinite(width) else 0.0 for width in half_widths or [0.0] * len(points)]
    finite: list[Point] = [
        (step, value, width) for (step, value), width in zip(points, widths, strict=True) if math.isfinite(value)
    ]
    known = _thinned(finite)
    if not known:
        return None
    low, high = min(value - width for _, value, width in known), max(value + width for _, value, width in known)
    first, last = known[0][0], known[-1][0]

    def x(step: float) -> float:
        return round((step - first) / (last - first) * WIDTH, 1) if last > first else WIDTH / 2

    def y(value: float) -> float:
        return round((high - value) / (high - low) * HEIGHT, 1) if high > low else HEIGHT / 2

    upper = [(x(step), y(value + width)) for step, value, width in known]
    lower = [(x(step), y(value - width)) for step, value, width in reversed(known)]
    line = [(x(step), y(value)) for step, value, _ in known]
    return Chart(
        title,
        _pairs(line),
        _pairs([*upper, *lower]) if any(width for *_, width in known) else "",
        line if len(line) <= 12 else (),
        f"{low:.4g}",
        f"{high:.4g}",
        f"{first:g}",
        f"{last:g}",
    )


def _thinned(points: Sequence[Point]) -> list[Point]:
    size = max(1, math.ceil(len(points) / MOST_POINTS))
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [
        (
            group[len(group) // 2][0],
            math.fsum(value for _, value, _ in group) / len(group),
            math.fsum(width for *_, width in group) / len(group),
        )
        for group in groups
    ]


def _pairs(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
