"""Lines over training, and the axes of steps and ratios."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradhomog.experiments.report.figures.curves import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW = 12

BROAD = 2.6
"""The width of a line that others are compared to."""


def draw(
    panel: Axes,
    curve: Curve,
    color: str,
    dashes: str,
    label: str,
    *,
    width: float = 1.3,
    band: bool = False,
    dots: bool = False,
    shown: Callable[[float], float] = float,
) -> None:
    """One line, dots on it where points are few or `dots` asks for them, and a band from lowest to highest.

    A broader line lies below a narrower one, so that both of two lines that coincide are visible. `shown` maps
    averages to the axis.
    """
    middle, low, high = ([shown(number) for number in line] for line in (curve.middle, curve.low, curve.high))
    # A line through one point is invisible, and one through a few hides where its points are.
    marker = "o" if dots or len(curve.steps) < _FEW else None
    panel.plot(
        curve.steps, middle, color=color, linestyle=dashes, label=label, linewidth=width,
        marker=marker, markersize=1.3 + width, zorder=3 - 0.1 * width,
    )  # fmt: skip
    if band:
        panel.fill_between(curve.steps, low, high, color=color, alpha=0.1, linewidth=0)
        if len(curve.steps) == 1:  # an area of no width is invisible
            panel.vlines(curve.steps, low, high, color=color, alpha=0.4, linewidth=width)


def step_axis(panel: Axes) -> None:
    """Whole steps, and room around a single one."""
    from matplotlib.ticker import MaxNLocator

    panel.set_xlabel("training step")
    panel.tick_params(labelbottom=True)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    spans = [other.dataLim.intervalx for other in panel.get_shared_x_axes().get_siblings(panel)]
    steps = {float(end) for span in spans for end in span if math.isfinite(end)}
    if len(steps) == 1:
        panel.set_xlim(min(steps) - 1, min(steps) + 1)


def ratio_axis(panel: Axes) -> None:
    """A logarithmic axis with 2, 3, 5 instead of powers of ten only: ratios rarely span a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 3, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_locator(NullLocator())
