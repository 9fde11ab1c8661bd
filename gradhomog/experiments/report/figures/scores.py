"""Figure of test scores: each method with its interval, and the differences to the plain learner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.statistics import Interval
from gradhomog.experiments.report.figures import style
from gradhomog.experiments.results.runs import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradhomog.experiments.analysis.summary import MethodRow, Summary


def scores(summary: Summary) -> Figure | None:
    """Scores of each method (left) and paired differences to the plain learner (right), one row of panels per learner.

    The left panel has the mean and 95 % interval of each method, its seeds as small dots, and the mean of the plain
    learner as a line. Methods are on the vertical axis, because texts of pipelines are long.
    """
    if not summary.rows:
        return None
    counts = [len(summary.rows_of(learner)) for learner in summary.learners]
    paired = any(row.to_plain is not None for row in summary.rows)
    height = 0.75 + 0.36 * sum(counts) + 0.3 * (len(counts) - 1)
    width = style.WIDTH * (1.15 if paired else 0.8)
    with style.figure_style():
        figure, axes = style.make_panels(
            len(counts), 1 + paired, height, width, sharex="col", sharey="row", height_ratios=counts
        )
        colors = style.colors([row.label for row in summary.rows])
        for learner, panels in zip(summary.learners, axes, strict=True):
            rows = summary.rows_of(learner)
            _draw_seeds(panels[0], rows, metric(summary.metric).factor, colors)
            _draw_intervals(panels[0], rows, [row.score for row in rows], summary.metric, colors)
            if paired:
                panels[1].axvline(0, **style.GUIDE_LINE)
                _draw_intervals(
                    panels[1],
                    rows,
                    [row.to_plain.difference if row.to_plain else None for row in rows],
                    summary.metric,
                    colors,
                )
            if len(counts) > 1:
                panels[0].set_title(learner)
        axes[-1][0].set_xlabel(style.score_axis_label(summary, "test"))
        if paired:
            unit = " (percentage points)" if metric(summary.metric).percent else ""
            axes[-1][1].set_xlabel(f"paired difference to plain{unit}")
    return figure


def _draw_intervals(
    panel: Axes,
    rows: Sequence[MethodRow],
    intervals: Sequence[Interval | None],
    kind: str,
    colors: dict[str, tuple[str, str]],
) -> None:
    """Draw one interval per method, from top to bottom in the order of the table."""
    for height, (row, interval) in enumerate(zip(rows, intervals, strict=True)):
        if interval is None:
            continue
        mean, half = style.scale_interval(interval, kind)
        if math.isnan(mean):
            panel.annotate(
                "not finite", (0.02, height), xycoords=("axes fraction", "data"), va="center", color=style.GUIDE_COLOR
            )
            continue
        if row.label == PLAIN:
            panel.axvline(mean, **style.GUIDE_LINE)
        error = None if math.isnan(half) else [[half], [half]]
        color = colors[row.label][0]
        panel.errorbar([mean], [height], xerr=error, fmt="o", color=color, markersize=4.5, capsize=2.5, elinewidth=1.3)
    panel.set_yticks(range(len(rows)), [style.wrap_label(row.label) for row in rows])
    panel.set_ylim(len(rows) - 0.45, -0.55)
    panel.grid(False, axis="y")
    panel.tick_params(axis="y", length=0)


def _draw_seeds(panel: Axes, rows: Sequence[MethodRow], factor: float, colors: dict[str, tuple[str, str]]) -> None:
    """Draw the scores of seeds below the intervals, so that seeds near the mean are visible."""
    for height, row in enumerate(rows):
        if len(row.seed_scores) > 1:
            dots = [factor * score for score in row.seed_scores]
            color = colors[row.label][0]
            panel.plot(
                dots, [height + 0.24] * len(dots), "o", color=color, markersize=3.2, alpha=0.6, markeredgewidth=0
            )
