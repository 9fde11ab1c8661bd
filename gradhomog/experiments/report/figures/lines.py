"""Draw lines over training, and format axes of steps and ratios."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from gradhomog.experiments.report.figures.curves import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW_POINTS = 12

REFERENCE_WIDTH = 2.6
"""The width of the line that others are compared with."""


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
    transform: Callable[[float], float] = float,
) -> None:
    """Draw a line with an optional band. Points have markers if `dots` is True or the line has few points.

    Wide lines are drawn below narrow lines, so that both lines are visible if they coincide. `transform` maps averages
    to values of the axis.
    """
    middle, low, high = ([transform(number) for number in line] for line in (curve.middle, curve.low, curve.high))
    # A line of one point is invisible, and the points of a line of few points are not recognizable.
    marker = "o" if dots or len(curve.steps) < _FEW_POINTS else None
    panel.plot(
        curve.steps, middle, color=color, linestyle=dashes, label=label, linewidth=width,
        marker=marker, markersize=1.3 + width, zorder=3 - 0.1 * width,
    )  # fmt: skip
    if band:
        panel.fill_between(curve.steps, low, high, color=color, alpha=0.1, linewidth=0)
        if len(curve.steps) == 1:  # an area of zero width is invisible
            panel.vlines(curve.steps, low, high, color=color, alpha=0.4, linewidth=width)


def step_axis(panel: Axes) -> None:
    """Format an axis of training steps: integer ticks, and a margin around a single step."""
    from matplotlib.ticker import MaxNLocator

    panel.set_xlabel("training step")
    panel.tick_params(labelbottom=True)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    spans = [other.dataLim.intervalx for other in panel.get_shared_x_axes().get_siblings(panel)]
    steps = {float(end) for span in spans for end in span if math.isfinite(end)}
    if len(steps) == 1:
        panel.set_xlim(min(steps) - 1, min(steps) + 1)


def ratio_axis(panel: Axes) -> None:
    """Format a logarithmic axis of ratios with ticks at 1, 2, 3, 5, because ratios rarely span a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 3, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_locator(NullLocator())
