"""Figure of test scores: each method with its interval, and the differences to the plain learner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradhomog.experiments.analysis.statistics import Interval
from gradhomog.experiments.report.figures import style
from gradhomog.experiments.runs import PLAIN
from gradhomog.experiments.score_metrics import metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradhomog.experiments.analysis.summary import Summary


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
            draw_rows(
                panels[0], [DrawnRow(row.label, row.score, row.seed_scores) for row in rows], summary.metric, colors
            )
            if paired:
                differences = [DrawnRow(row.label, row.to_plain.difference if row.to_plain else None) for row in rows]
                panels[1].axvline(0, **style.GUIDE_LINE)
                draw_rows(panels[1], differences, summary.metric, colors)
            if len(counts) > 1:
                panels[0].set_title(learner)
        unit = " (percentage points)" if metric(summary.metric).percent else ""
        labels = [style.score_axis_label(summary, "test"), f"paired difference to plain{unit}"]
        for panel, label in zip(axes[-1], labels, strict=False):
            panel.set_xlabel(label)
    return figure


@dataclass(frozen=True)
class DrawnRow:
    """An interval, and the scores of its seeds as dots; None if there is no interval."""

    label: str
    interval: Interval | None
    seed_scores: Sequence[float] = ()


def draw_rows(panel: Axes, rows: Sequence[DrawnRow], kind: str, colors: Mapping[str, tuple[str, str]]) -> None:
    """Draw one interval per row, from top to bottom in the order of the table."""
    for height, row in enumerate(rows):
        if row.interval is not None:
            _draw_row(panel, height, row, row.interval, metric(kind).factor, colors[row.label][0])
    panel.set_yticks(range(len(rows)), [style.wrap_label(row.label) for row in rows])
    panel.set_ylim(len(rows) - 0.45, -0.55)
    panel.grid(False, axis="y")
    panel.tick_params(axis="y", length=0)


def _draw_row(panel: Axes, height: int, row: DrawnRow, interval: Interval, factor: float, color: str) -> None:
    """Draw an interval; `factor` converts scores to the unit of the axis, percent for accuracies."""
    if len(row.seed_scores) > 1:
        dots = [factor * score for score in row.seed_scores]
        # Below the intervals, so that seeds near the mean are visible.
        panel.plot(dots, [height + 0.24] * len(dots), "o", color=color, markersize=3.2, alpha=0.6, markeredgewidth=0)
    mean, half = factor * interval.mean, factor * interval.half_width
    if math.isnan(mean):
        place = ("axes fraction", "data")
        panel.annotate("not finite", (0.02, height), xycoords=place, va="center", color=style.GUIDE_COLOR)
        return
    if row.label == PLAIN:
        panel.axvline(mean, **style.GUIDE_LINE)
    error = None if math.isnan(half) else [[half], [half]]
    panel.errorbar([mean], [height], xerr=error, fmt="o", color=color, markersize=4.5, capsize=2.5, elinewidth=1.3)
