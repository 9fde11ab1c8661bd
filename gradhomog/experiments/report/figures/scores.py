"""Figure of test scores: each method with its interval, and the differences to the plain learner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
            labels = [row.label for row in rows]
            seeds = [row.seed_scores for row in rows]
            draw_rows(panels[0], labels, [row.score for row in rows], summary.metric, colors, seeds)
            if paired:
                panels[1].axvline(0, **style.GUIDE_LINE)
                differences = [row.to_plain.difference if row.to_plain else None for row in rows]
                draw_rows(panels[1], labels, differences, summary.metric, colors)
            if len(counts) > 1:
                panels[0].set_title(learner)
        axes[-1][0].set_xlabel(style.score_axis_label(summary, "test"))
        if paired:
            unit = " (percentage points)" if metric(summary.metric).percent else ""
            axes[-1][1].set_xlabel(f"paired difference to plain{unit}")
    return figure


def draw_rows(
    panel: Axes,
    labels: Sequence[str],
    intervals: Sequence[Interval | None],
    kind: str,
    colors: Mapping[str, tuple[str, str]],
    seed_scores: Sequence[Sequence[float]] = (),
) -> None:
    """Draw one interval per row, from top to bottom in the order of the table, and the scores of its seeds as dots."""
    factor = metric(kind).factor  # the unit of axes is percent for accuracies
    for height, scores_of_row in enumerate(seed_scores):
        if len(scores_of_row) > 1:
            dots = [factor * score for score in scores_of_row]
            color = colors[labels[height]][0]
            # Below the intervals, so that seeds near the mean are visible.
            panel.plot(
                dots, [height + 0.24] * len(dots), "o", color=color, markersize=3.2, alpha=0.6, markeredgewidth=0
            )
    for height, (label, interval) in enumerate(zip(labels, intervals, strict=True)):
        if interval is None:
            continue
        mean, half = factor * interval.mean, factor * interval.half_width
        if math.isnan(mean):
            panel.annotate(
                "not finite", (0.02, height), xycoords=("axes fraction", "data"), va="center", color=style.GUIDE_COLOR
            )
            continue
        if label == PLAIN:
            panel.axvline(mean, **style.GUIDE_LINE)
        error = None if math.isnan(half) else [[half], [half]]
        color = colors[label][0]
        panel.errorbar([mean], [height], xerr=error, fmt="o", color=color, markersize=4.5, capsize=2.5, elinewidth=1.3)
    panel.set_yticks(range(len(labels)), [style.wrap_label(label) for label in labels])
    panel.set_ylim(len(labels) - 0.45, -0.55)
    panel.grid(False, axis="y")
    panel.tick_params(axis="y", length=0)
