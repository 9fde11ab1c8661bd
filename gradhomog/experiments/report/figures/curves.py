"""Figures over training: agreement of task gradients, also after each homogenizer, task weights, scores, and paths."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gradhomog.experiments.analysis import training_records
from gradhomog.experiments.report.figures import style
from gradhomog.experiments.results.events import Record, numbers
from gradhomog.experiments.runs import PLAIN
from gradhomog.experiments.score_metrics import metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradhomog.experiments.analysis.summary import Summary
    from gradhomog.experiments.results.artifacts import Trajectory


_FEW_POINTS = 12

REFERENCE_WIDTH = 2.6
"""The width of the line that others are compared with."""


class Look(NamedTuple):
    """The look of a line, and of a band over runs."""

    color: str
    dashes: str
    label: str
    width: float = 1.3
    band: bool = False


@dataclass(frozen=True)
class Measure:
    """A number of a record of training.

    Attributes:
        value: its value for a record; a logarithm if `logarithmic`, so that its mean has no peak at a single step with
            a tiny gradient.
        label: label of the axis.
        reference: where a line is drawn.
    """

    value: Callable[[Record], float]
    label: str
    reference: float | None = None
    logarithmic: bool = False

    def draw(self, panel: Axes, runs: Sequence[Sequence[Record]], look: Look, smooth: bool = True) -> None:
        """Draw the mean over runs, with an optional band.

        If `smooth`, values are running means over a tenth of a run, and the band is the range over runs. Otherwise
        points have markers, and the band is the 95 % confidence interval. Wide lines are drawn below narrow lines, so
        that both lines are visible if they coincide.
        """
        averaged = training_records.average(
            [training_records.curve(run, self.value, smooth) for run in runs], interval=not smooth
        )
        steps, scale = list(averaged), math.exp if self.logarithmic else float
        middle, low, high = ([scale(entry[place]) for entry in averaged.values()] for place in range(3))
        # A line of one point is invisible, and the points of a line of few points are not recognizable.
        marker = "o" if not smooth or len(steps) < _FEW_POINTS else None
        panel.plot(
            steps, middle, color=look.color, linestyle=look.dashes, label=look.label, linewidth=look.width,
            marker=marker, markersize=1.3 + look.width, zorder=3 - 0.1 * look.width,
        )  # fmt: skip
        if look.band:
            panel.fill_between(steps, low, high, color=look.color, alpha=0.1, linewidth=0)
            if len(steps) == 1:  # an area of zero width is invisible
                panel.vlines(steps, low, high, color=look.color, alpha=0.4, linewidth=look.width)

    def format_axis(self, panel: Axes) -> None:
        """Draw the reference, and label the axis; ratios have ticks at 1, 2, 3, 5: they rarely span a decade."""
        from matplotlib.ticker import LogLocator, NullLocator

        panel.set_ylabel(self.label)
        if self.reference is not None:
            panel.axhline(self.reference, **style.GUIDE_LINE)
        if self.logarithmic:
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 3, 5)))
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_locator(NullLocator())


COSINE = Measure(training_records.mean_cosine, "cosine", reference=0.0)
RATIO = Measure(lambda record: math.log(training_records.norm_ratio(record)), "norm ratio", logarithmic=True)
DISTANCE = Measure(
    training_records.relative_distance, "distance", reference=math.sqrt(2)
)  # that of orthogonal rows of equal norm
AGREEMENT = (
    replace(COSINE, label="mean cosine\nbetween task gradients"),
    replace(RATIO, label="gradient norm,\nlargest / smallest task"),
)


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


def _grid(
    rows: Collection[Any], measures: Sequence[Measure], height: float, draw: Callable[[Axes, Any, Measure], None]
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a row of panels for each key, and a column for each measure."""
    figure, axes = style.make_panels(
        len(rows), len(measures), height, 1.15 * style.WIDTH, sharex="col", sharey="col" if len(measures) > 2 else False
    )
    for key, panels in zip(rows, axes, strict=True):
        for panel, measure in zip(panels, measures, strict=True):
            draw(panel, key, measure)
            measure.format_axis(panel)
    for panel in axes[-1]:
        step_axis(panel)
    return figure, axes


def conflict(records: Iterable[Record]) -> Figure | None:
    """Mean cosine between the gradients of two tasks, and the ratio of their norms, over training.

    The rows are those before homogenization. One line per method: the running mean over a tenth of training, averaged
    over seeds, with a band for the range over seeds. One pair of panels per learner.
    """
    runs = training_records.runs_of(records, "step")
    if not any(len(record["norms"]) > 1 for group in runs.values() for run in group for record in run):
        return None
    learners = list(dict.fromkeys(learner for learner, _ in runs))

    def draw(panel: Axes, learner: str, measure: Measure) -> None:
        for group, look in _lines(runs, learner):
            measure.draw(panel, group, look)

    with style.figure_style():
        figure, axes = _grid(learners, AGREEMENT, 0.35 + 2.3 * len(learners), draw)
        for learner, panels in zip(learners, axes, strict=True):
            panels[0].set_title(learner if len(learners) > 1 else "")
        style.add_legend(figure, [panel for row in axes for panel in row])
    return figure


def weights(records: Iterable[Record]) -> Figure | None:
    """Task weights over training, one panel per method that reweights tasks, with one line per training domain.

    A line is the mean over the tasks of a domain, as a running mean over a tenth of training, averaged over seeds; 1 is
    the plain mean. None if no method reweights, or for one domain, whose tasks are interchangeable.
    """
    runs = {key: group for key, group in training_records.runs_of(records, "step").items() if _changes_weights(group)}
    domains = sorted({name for group in runs.values() for run in group for record in run for name in record["names"]})
    if len(domains) < 2:
        return None
    colors = style.colors(domains)
    several = len({learner for learner, _ in runs}) > 1

    def draw(panel: Axes, method: tuple[str, str]) -> None:
        panel.axhline(1, **style.GUIDE_LINE)
        for domain in domains:
            measure = Measure(partial(_mean_weight, domain), "task weight")
            measure.draw(panel, runs[method], Look(*colors[domain], style.wrap_label(domain)))

    titles = {key: f"{key[1]} ({key[0]})" if several else key[1] for key in runs}
    return style.panel_figure(titles, draw, step_axis, "task weight", 1.75, 1.95, legend=True, sharex=True, sharey=True)


def validation(records: Iterable[Record], summary: Summary) -> Figure | None:
    """Validation score over training, averaged over seeds; bands are 95 % confidence intervals over seeds."""
    runs = training_records.runs_of(records, "validation")
    if not runs:
        return None
    factor, label = metric(summary.metric).factor, style.wrap_label(style.score_axis_label(summary, "validation"))
    measure = Measure(lambda record: factor * numbers([record["score"]])[0], label)
    learners = list(dict.fromkeys(learner for learner, _ in runs))

    def draw(panel: Axes, learner: str) -> None:
        for group, look in _lines(runs, learner):
            measure.draw(panel, group, look, smooth=False)

    titles = {learner: learner if len(learners) > 1 else "" for learner in learners}
    return style.panel_figure(titles, draw, step_axis, label, 2.2, 2.2, legend=True, sharey=True)


def _lines(runs: training_records.Runs, learner: str) -> Iterator[tuple[list[list[Record]], Look]]:
    """The runs of each method of a learner, with the look of its line: a band over seeds, and the plain one wide."""
    colors = style.colors([label for _, label in runs])
    for (owner, label), group in runs.items():
        if owner == learner:
            width = REFERENCE_WIDTH if label == PLAIN else 1.3
            yield group, Look(*colors[label], style.wrap_label(label), width, len(group) > 1)


def _changes_weights(group: Sequence[Sequence[Record]]) -> bool:
    """True if a weight differs from 1, the weight of the plain mean, by more than rounding errors."""
    return any(abs(weight - 1) > 1e-6 for run in group for record in run for weight in numbers(record["weights"]))


def _mean_weight(domain: str, record: Record) -> float:
    """The mean weight of the tasks of a domain; NaN without such tasks."""
    pairs = zip(record["names"], numbers(record["weights"]), strict=False)
    return training_records.finite_mean([weight for name, weight in pairs if name == domain])


def stages(records: Iterable[Record]) -> Figure | None:
    """One row of panels per method: mean cosine, norm ratio and distance of rows, with one line per homogenizer.

    The values are those of probes if a method has probes, because they include homogenizers that act before rows exist.
    Otherwise they are those of training steps, as running means over a tenth of training. Averaged over seeds. None if
    no record has stages.
    """
    methods = method_stages(records)
    if not methods:
        return None
    colors = style.colors([name for by_stage, _ in methods.values() for name in by_stage])
    several = len({learner for learner, _ in methods}) > 1

    def draw(panel: Axes, method: tuple[str, str], measure: Measure) -> None:
        by_stage, probed = methods[method]
        for index, (name, runs) in enumerate(by_stage.items()):
            width = min(1.2 + 0.4 * (len(by_stage) - 1 - index), 2.2) if index else REFERENCE_WIDTH
            title = style.wrap_label(f"after {name}", 20) if index else "before"
            measure.draw(panel, runs, Look(*colors[name], title, width), smooth=not probed)

    with style.figure_style():
        figure, axes = _grid(methods, (COSINE, RATIO, DISTANCE), 0.4 + 1.5 * len(methods), draw)
        for (learner, label), panels in zip(methods, axes, strict=True):
            # Not part of the layout: a long title may extend over the panels to its right.
            panels[0].set_title(" ")
            place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "in_layout": False}
            panels[0].annotate(f"{label} ({learner})" if several else label, (0, 1), (0, 5), fontsize=9, **place)
            panels[2].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), handlelength=1.6, fontsize=8)
    return figure


def method_stages(records: Iterable[Record]) -> dict[tuple[str, str], tuple[dict[str, list[list[Record]]], bool]]:
    """The records of the rows of each method with homogenizers, by stage and run; and True if they are of probes.

    Stages are `plain`, the rows before homogenization, then the homogenizers in order; the second occurrence of a name
    is `name#2`. Probes have all stages for the same tasks and parameters; the others are those of training steps.
    """
    records = list(records)
    probes, steps = training_records.runs_of(records, "probe"), training_records.runs_of(records, "step")
    found = {}
    for method in {**steps, **probes}:
        group = probes.get(method) or [
            [{**step, "stages": [{**step, "name": PLAIN}, *step["stages"]]} for step in run] for run in steps[method]
        ]
        if by_stage := _by_stage(group):
            found[method] = by_stage, method in probes
    return found


def _by_stage(group: Sequence[Sequence[Record]]) -> dict[str, list[list[Record]]]:
    """The records of each stage; none if there is no homogenizer, or if the stages of records differ."""
    first, *others = {tuple(stage["name"] for stage in record["stages"]) for run in group for record in run}
    if others or len(first) == 1:
        return {}
    found = {}
    for index, name in enumerate(first):
        title = name if name not in first[:index] else f"{name}#{first[: index + 1].count(name)}"
        found[title] = [[{**record["stages"][index], "step": record["step"]} for record in run] for run in group]
    return found


CONTOUR_LEVELS = 12


def trajectories(by_method: Mapping[tuple[str, str], Trajectory]) -> Figure | None:
    """Contours of the mean loss, the Pareto set as a grey line, and a path from each start; None without paths."""
    if not by_method:
        return None

    def coordinate_axis(panel: Axes) -> None:
        panel.set_xlabel("x₁")
        panel.tick_params(labelbottom=True)

    titles = {key: key[1] for key in by_method}
    return style.panel_figure(
        titles, lambda panel, key: _draw_trajectory(panel, by_method[key]), coordinate_axis, "x₂", 2.6, 2.0,
        sharex=True, sharey=True,
    )  # fmt: skip


def _draw_trajectory(panel: Axes, trajectory: Trajectory) -> None:
    panel.set_aspect("equal")
    panel.grid(False)
    axis = trajectory.axis
    panel.contour(axis, axis, trajectory.surface, CONTOUR_LEVELS, cmap="viridis", linewidths=0.7, alpha=0.8, zorder=1)
    panel.plot(*trajectory.front.T, color=style.GUIDE_COLOR, linewidth=3.5, solid_capstyle="round", zorder=2)
    ends: dict[str, Any] = {"color": "black", "zorder": 4}
    for path in trajectory.path.swapaxes(0, 1):
        panel.plot(*path.T, color=style.PALETTE[1], linewidth=1.6, zorder=3)
        panel.plot(*path[0], "o", markersize=4, **ends)
        panel.plot(
            *path[-1], "X", markersize=5.5, markeredgecolor="white", markeredgewidth=0.6, **{**ends, "zorder": 5}
        )
