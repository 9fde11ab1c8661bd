"""Figures over training: agreement of the task gradients, task weights, and the validation score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradhomog.experiments.analysis import metrics
from gradhomog.experiments.report.figures import lines, style
from gradhomog.experiments.report.figures.agreement import mean_cosine, norm_ratio
from gradhomog.experiments.report.figures.curves import average, with_interval
from gradhomog.experiments.report.figures.runs import Runs, curve, runs_of
from gradhomog.experiments.results.events import Record, numbers
from gradhomog.experiments.results.plan import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradhomog.experiments.analysis.summary import Summary


def conflict(records: Iterable[Record]) -> Figure | None:
    """Mean cosine between the gradients of two tasks, and the ratio of their norms, over training.

    Of the rows as they are before homogenization. One line per method: the running mean over a tenth of training,
    averaged over seeds; bands reach from the lowest to the highest seed. One pair of panels per learner.
    """
    runs = runs_of(records, "step")
    if not any(len(record["norms"]) > 1 for group in runs.values() for run in group for record in run):
        return None
    learners = list(dict.fromkeys(learner for learner, _ in runs))
    with style.drawing():
        figure, axes = style.panels(len(learners), 2, 0.35 + 2.3 * len(learners), sharex=True, width=1.15 * style.WIDTH)
        for learner, (left, right) in zip(learners, axes, strict=True):
            _lines(left, runs, learner, mean_cosine)
            # The axis is logarithmic, and so is the mean: one step with a tiny gradient does not make a peak.
            _lines(right, runs, learner, lambda record: math.log(norm_ratio(record)), shown=math.exp)
            left.axhline(0, **style.GUIDE_LINE)
            left.set_ylabel("mean cosine\nbetween task gradients")
            right.set_ylabel("gradient norm,\nlongest / shortest task")
            lines.ratio_axis(right)
            if len(learners) > 1:
                left.set_title(learner)
        for panel in axes[-1]:
            lines.step_axis(panel)
        style.legend(figure, [panel for row in axes for panel in row])
    return figure


def weights(records: Iterable[Record]) -> Figure | None:
    """Each task's share in the step over training, one panel per method that reweights; None if none does.

    Of several training domains, one line per domain, the mean over its tasks; of a single one, one line per rank, from
    the largest weight of the step to the smallest, since slots of tasks that are drawn alike cannot be told apart.
    Running means over a tenth of training, averaged over seeds; 1 is the plain mean.
    """
    runs = {key: group for key, group in runs_of(records, "step").items() if _reweights(group)}
    if not runs:
        return None
    domains = sorted({name for group in runs.values() for run in group for record in run for name in record["domains"]})
    shares = _by_domain(domains) if len(domains) > 1 else _by_rank(runs)
    several = len({learner for learner, _ in runs}) > 1
    across = min(3, len(runs))
    down = math.ceil(len(runs) / across)
    with style.drawing():
        width = style.WIDTH * (0.35 + 0.27 * across)
        figure, axes = style.panels(down, across, 0.4 + 1.75 * down, width, sharex=True, sharey=True)
        flat = [panel for row in axes for panel in row]
        for panel in flat[len(runs) :]:
            panel.set_visible(False)
        for panel, ((learner, label), group) in zip(flat, runs.items(), strict=False):
            panel.axhline(1, **style.GUIDE_LINE)
            for name, color, dashes, value in shares:
                lines.draw(panel, average([curve(run, value) for run in group]), color, dashes, name)
            panel.set_title(style.wrapped(f"{label} ({learner})" if several else label, 30))
        for index, panel in enumerate(flat[: len(runs)]):
            if index + across >= len(runs):
                lines.step_axis(panel)
            if index % across == 0:
                panel.set_ylabel("task weight")
        style.legend(figure, flat[: len(runs)])
    return figure


def validation(records: Iterable[Record], summary: Summary) -> Figure | None:
    """Validation score over training, averaged over seeds; bands are 95 % confidence intervals over seeds."""
    runs = runs_of(records, "validation")
    if not runs:
        return None
    factor = metrics.metric(summary.metric).factor
    learners = list(dict.fromkeys(learner for learner, _ in runs))
    with style.drawing():
        across = min(3, len(learners))
        down = math.ceil(len(learners) / across)
        width = style.WIDTH * min(1.15, 0.45 + 0.4 * across)
        figure, axes = style.panels(down, across, 0.4 + 2.2 * down, width, sharey=True)
        panels = [panel for row in axes for panel in row]
        for panel in panels[len(learners) :]:
            panel.set_visible(False)
        for learner, panel in zip(learners, panels, strict=False):  # the last line may have panels left
            _lines(panel, runs, learner, lambda r: factor * numbers([r["score"]])[0], smooth=False)
            lines.step_axis(panel)
            if len(learners) > 1:
                panel.set_title(style.wrapped(learner))
        for row in axes:
            row[0].set_ylabel(style.wrapped(style.axis_name(summary, "validation")))
        style.legend(figure, panels[: len(learners)])
    return figure


def _lines(
    panel: Axes,
    runs: Runs,
    learner: str,
    value: Callable[[Record], float],
    smooth: bool = True,
    shown: Callable[[float], float] = float,
) -> None:
    """One line per method of a learner, with a band over seeds; `shown` maps averages to the axis.

    Smoothed values depend on each other, so only the others have a confidence interval.
    """
    look = style.colors([label for _, label in runs])
    for (owner, label), group in runs.items():
        if owner == learner:
            curves = [curve(run, value, smooth) for run in group]
            averaged = average(curves) if smooth else with_interval(curves)
            lines.draw(
                panel, averaged, *look[label], style.wrapped(label), band=len(group) > 1, dots=not smooth,
                width=lines.BROAD if label == PLAIN else 1.3, shown=shown,
            )  # fmt: skip


def _reweights(group: Sequence[Sequence[Record]]) -> bool:
    """Whether any weight differs from 1, that of the plain mean, by more than rounding."""
    return any(abs(weight - 1) > 1e-6 for run in group for record in run for weight in numbers(record["weights"]))


def _by_domain(domains: Sequence[str]) -> list[tuple[str, str, str, Callable[[Record], float]]]:
    size = len(style.PALETTE)

    def of(domain: str) -> Callable[[Record], float]:
        def value(record: Record) -> float:
            pairs = zip(record["tasks"], numbers(record["weights"]), strict=False)
            found = [weight for slot, weight in pairs if record["domains"][slot] == domain]
            return sum(found) / len(found) if found else math.nan

        return value

    return [
        (style.wrapped(domain or "(no name)"), style.PALETTE[i % size], style.DASHES[i // size % 4], of(domain))
        for i, domain in enumerate(domains)
    ]


def _by_rank(runs: Runs) -> list[tuple[str, str, str, Callable[[Record], float]]]:
    count = max(len(record["weights"] or ()) for group in runs.values() for run in group for record in run)
    ranks = sorted({round(rank) for rank in np.linspace(0, count - 1, min(count, 5))})

    def of(rank: int) -> Callable[[Record], float]:
        def value(record: Record) -> float:
            ordered = sorted(numbers(record["weights"]), reverse=True)
            return ordered[rank] if rank < len(ordered) else math.nan

        return value

    names = {0: "largest weight", count - 1: "smallest weight"}
    return [(names.get(rank, f"rank {rank + 1}"), style.PALETTE[i], "-", of(rank)) for i, rank in enumerate(ranks)]
