"""Figures over training: agreement of task gradients, task weights, and validation score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from gradhomog.experiments.analysis import metrics
from gradhomog.experiments.report.figures import style
from gradhomog.experiments.report.figures.curves import (
    REFERENCE_WIDTH,
    Runs,
    average,
    curve,
    draw_curve,
    mean_cosine,
    norm_ratio,
    ratio_axis,
    runs_of,
    step_axis,
)
from gradhomog.experiments.results.events import Record, numbers
from gradhomog.experiments.results.runs import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradhomog.experiments.analysis.summary import Summary


def conflict(records: Iterable[Record]) -> Figure | None:
    """Mean cosine between the gradients of two tasks, and the ratio of their norms, over training.

    The rows are those before homogenization. One line per method: the running mean over a tenth of training, averaged
    over seeds, with a band for the range over seeds. One pair of panels per learner.
    """
    runs = runs_of(records, "step")
    if not any(len(record["norms"]) > 1 for group in runs.values() for run in group for record in run):
        return None
    learners = list(dict.fromkeys(learner for learner, _ in runs))
    with style.figure_style():
        figure, axes = style.make_panels(
            len(learners), 2, 0.35 + 2.3 * len(learners), sharex=True, width=1.15 * style.WIDTH
        )
        for learner, (left, right) in zip(learners, axes, strict=True):
            _draw_lines(left, runs, learner, mean_cosine)
            # Logarithms are averaged, because the axis is logarithmic: a single step with a tiny gradient is no peak.
            _draw_lines(right, runs, learner, lambda record: math.log(norm_ratio(record)), transform=math.exp)
            left.axhline(0, **style.GUIDE_LINE)
            left.set_ylabel("mean cosine\nbetween task gradients")
            right.set_ylabel("gradient norm,\nlargest / smallest task")
            ratio_axis(right)
            if len(learners) > 1:
                left.set_title(learner)
        for panel in axes[-1]:
            step_axis(panel)
        style.add_legend(figure, [panel for row in axes for panel in row])
    return figure


def weights(records: Iterable[Record]) -> Figure | None:
    """Task weights over training, one panel per method that reweights tasks, with one line per training domain.

    A line is the mean over the tasks of a domain, as a running mean over a tenth of training, averaged over seeds; 1 is
    the plain mean. None if no method reweights, or for one domain, whose tasks are interchangeable.
    """
    runs = {key: group for key, group in runs_of(records, "step").items() if _changes_weights(group)}
    domains = sorted({name for group in runs.values() for run in group for record in run for name in record["names"]})
    if len(domains) < 2:
        return None
    weight_lines = _lines_by_domain(domains)
    several = len({learner for learner, _ in runs}) > 1
    with style.figure_style():
        figure, panels, lowest, leftmost = style.make_panel_list(len(runs), 3, 1.75, 1.95, sharex=True, sharey=True)
        for panel, ((learner, label), group) in zip(panels, runs.items(), strict=True):
            panel.axhline(1, **style.GUIDE_LINE)
            for name, color, dashes, value in weight_lines:
                draw_curve(panel, average([curve(run, value) for run in group]), color, dashes, name)
            panel.set_title(style.wrap_label(f"{label} ({learner})" if several else label, 30))
        for panel in lowest:
            step_axis(panel)
        for panel in leftmost:
            panel.set_ylabel("task weight")
        style.add_legend(figure, panels)
    return figure


def validation(records: Iterable[Record], summary: Summary) -> Figure | None:
    """Validation score over training, averaged over seeds; bands are 95 % confidence intervals over seeds."""
    runs = runs_of(records, "validation")
    if not runs:
        return None
    factor = metrics.metric(summary.metric).factor
    learners = list(dict.fromkeys(learner for learner, _ in runs))
    with style.figure_style():
        figure, panels, _, leftmost = style.make_panel_list(len(learners), 3, 2.2, 2.2, sharey=True)
        for learner, panel in zip(learners, panels, strict=True):
            _draw_lines(panel, runs, learner, lambda r: factor * numbers([r["score"]])[0], smooth=False)
            step_axis(panel)
            if len(learners) > 1:
                panel.set_title(style.wrap_label(learner))
        for panel in leftmost:
            panel.set_ylabel(style.wrap_label(style.score_axis_label(summary, "validation")))
        style.add_legend(figure, panels)
    return figure


def _draw_lines(
    panel: Axes,
    runs: Runs,
    learner: str,
    value: Callable[[Record], float],
    smooth: bool = True,
    transform: Callable[[float], float] = float,
) -> None:
    """Draw one line per method of a learner, with a band over seeds; `transform` maps averages to values of the axis.

    The band is the range over seeds for smoothed values, and the confidence interval otherwise.
    """
    colors = style.colors([label for _, label in runs])
    for (owner, label), group in runs.items():
        if owner == learner:
            curves = [curve(run, value, smooth) for run in group]
            averaged = average(curves, interval=not smooth)
            draw_curve(
                panel, averaged, *colors[label], style.wrap_label(label), band=len(group) > 1, dots=not smooth,
                width=REFERENCE_WIDTH if label == PLAIN else 1.3, transform=transform,
            )  # fmt: skip


def _changes_weights(group: Sequence[Sequence[Record]]) -> bool:
    """True if a weight differs from 1, the weight of the plain mean, by more than rounding errors."""
    return any(abs(weight - 1) > 1e-6 for run in group for record in run for weight in numbers(record["weights"]))


def _lines_by_domain(domains: Sequence[str]) -> list[tuple[str, str, str, Callable[[Record], float]]]:
    """Name, colour, dashes and value of the line of each domain."""
    size = len(style.PALETTE)

    def mean_weight(domain: str) -> Callable[[Record], float]:
        def value(record: Record) -> float:
            pairs = zip(record["names"], numbers(record["weights"]), strict=False)
            values = [weight for name, weight in pairs if name == domain]
            return sum(values) / len(values) if values else math.nan

        return value

    return [
        (
            style.wrap_label(domain),
            style.PALETTE[i % size],
            style.DASHES[i // size % 4],
            mean_weight(domain),
        )
        for i, domain in enumerate(domains)
    ]
