"""Small line charts as SVG, drawn without matplotlib; a page has two for each run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 300, 120
"""Size of the plot in units of the SVG, which are pixels at full size."""

MAX_POINTS = 100
"""A longer curve is averaged over groups of consecutive steps, at most this many groups."""


Point = tuple[float, float, float]
"""Step, value, and half the width of its interval."""


@dataclass(frozen=True)
class Chart:
    """Coordinates and labels of a chart.

    Attributes:
        points: `x,y` pairs of the line.
        band: `x,y` pairs of the polygon around the line; empty without intervals.
        dots: coordinates of markers; empty for a line with many points.
        low, high: values at the bottom and the top.
        first, last: steps at the left and the right.
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

    Values that are not finite are omitted.
    """
    widths = [width if math.isfinite(width) else 0.0 for width in half_widths or [0.0] * len(points)]
    finite: list[Point] = [
        (step, value, width) for (step, value), width in zip(points, widths, strict=True) if math.isfinite(value)
    ]
    drawn = _average_groups(finite)
    if not drawn:
        return None
    low, high = min(value - width for _, value, width in drawn), max(value + width for _, value, width in drawn)
    first, last = drawn[0][0], drawn[-1][0]

    def x(step: float) -> float:
        return round((step - first) / (last - first) * WIDTH, 1) if last > first else WIDTH / 2

    def y(value: float) -> float:
        return round((high - value) / (high - low) * HEIGHT, 1) if high > low else HEIGHT / 2

    upper = [(x(step), y(value + width)) for step, value, width in drawn]
    lower = [(x(step), y(value - width)) for step, value, width in reversed(drawn)]
    line = [(x(step), y(value)) for step, value, _ in drawn]
    return Chart(
        title,
        _svg_points(line),
        _svg_points([*upper, *lower]) if any(width for *_, width in drawn) else "",
        line if len(line) <= 12 else (),
        f"{low:.4g}",
        f"{high:.4g}",
        f"{first:g}",
        f"{last:g}",
    )


def _average_groups(points: Sequence[Point]) -> list[Point]:
    size = max(1, math.ceil(len(points) / MAX_POINTS))
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [
        (
            group[len(group) // 2][0],
            math.fsum(value for _, value, _ in group) / len(group),
            math.fsum(width for *_, width in group) / len(group),
        )
        for group in groups
    ]


def _svg_points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
