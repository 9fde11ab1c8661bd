"""Figure of the agreement of task gradients before and after each homogenizer of a pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradhomog.experiments.report.figures import style
from gradhomog.experiments.report.figures.curves import (
    REFERENCE_WIDTH,
    average,
    curve,
    draw_curve,
    mean_cosine,
    norm_ratio,
    ratio_axis,
    relative_distance,
    runs_of,
    step_axis,
)
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.runs import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class MethodStages:
    """Norms and cosines of the rows of one method, before its homogenizers (`plain`) and after each, by run.

    Attributes:
        names: `plain`, then the homogenizers in order; the second occurrence of a name is `name#2`.
        runs: the records of each run, with `step` and one entry of `stages` per name.
        probed: True for records of probes, which have all stages for the same tasks and parameters; False for records
            of training steps.
    """

    learner: str
    label: str
    names: tuple[str, ...]
    runs: Sequence[Sequence[Record]]
    probed: bool


def stages(records: Iterable[Record]) -> Figure | None:
    """One row of panels per method: mean cosine, norm ratio and distance of rows, with one line per homogenizer.

    The values are those of probes if a method has probes, because they include homogenizers that act before rows exist.
    Otherwise they are those of training steps, as running means over a tenth of training. Averaged over seeds. None if
    no record has stages.
    """
    methods = method_stages(records)
    if not methods:
        return None
    colors = style.colors([name for method in methods for name in method.names])
    several = len({method.learner for method in methods}) > 1
    with style.figure_style():
        height = 0.4 + 1.5 * len(methods)
        figure, axes = style.make_panels(len(methods), 3, height, 1.15 * style.WIDTH, sharex="col", sharey="col")
        for method, (left, middle, right) in zip(methods, axes, strict=True):
            left.axhline(0, **style.GUIDE_LINE)
            right.axhline(math.sqrt(2), **style.GUIDE_LINE)
            for index, name in enumerate(method.names):
                _draw_stage(left, method, index, colors[name], mean_cosine)
                # Logarithms are averaged, because the axis is logarithmic.
                _draw_stage(middle, method, index, colors[name], lambda stage: math.log(norm_ratio(stage)), math.exp)
                _draw_stage(right, method, index, colors[name], relative_distance)
            left.set_ylabel("cosine")
            middle.set_ylabel("norm ratio")
            right.set_ylabel("distance")
            ratio_axis(middle)
            title = f"{method.label} ({method.learner})" if several else method.label
            # Not part of the layout: a long title may extend over the panels to its right.
            left.set_title(" ")
            place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "in_layout": False}
            left.annotate(title, (0, 1), (0, 5), fontsize=9, **place)
            right.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), handlelength=1.6, fontsize=8)
        for panel in axes[-1]:
            step_axis(panel)
    return figure


def method_stages(records: Iterable[Record]) -> list[MethodStages]:
    """The stages of each method with homogenizers; empty for an event log of an older version."""
    records = list(records)
    probes, steps = runs_of(records, "probe"), runs_of(records, "step")
    methods = []
    for learner, label in {**steps, **probes}:
        probed = (learner, label) in probes
        group = (
            probes[learner, label]
            if probed
            else [[_with_plain_stage(step) for step in run] for run in steps[learner, label]]
        )
        names = {tuple(_unique_names([stage["name"] for stage in record["stages"]])) for run in group for record in run}
        if len(names) == 1 and len(only := names.pop()) > 1:
            methods.append(MethodStages(learner, label, only, group, probed))
    return methods


def _with_plain_stage(step: Record) -> Record:
    """The record of a step in the form of a probe: the first stage has the rows before homogenization."""
    before = {"name": PLAIN, "norms": step["norms"], "cosines": step["cosines"]}
    return {"step": step["step"], "stages": [before, *(step.get("stages") or ())]}


def _unique_names(names: Sequence[str]) -> list[str]:
    counts = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [name if count == 1 else f"{name}#{count}" for name, count in zip(names, counts, strict=True)]


def _draw_stage(
    panel: Axes,
    method: MethodStages,
    index: int,
    color_and_dashes: tuple[str, str],
    value: Callable[[Record], float],
    transform: Callable[[float], float] = float,
) -> None:
    """Draw the line of one stage of a method."""

    def stage_value(record: Record) -> float:
        return value(record["stages"][index])

    averaged = average([curve(run, stage_value, smooth=not method.probed) for run in method.runs])
    width = min(1.2 + 0.4 * (len(method.names) - 1 - index), 2.2) if index else REFERENCE_WIDTH
    name = style.wrap_label(f"after {method.names[index]}", 20) if index else "before"
    draw_curve(panel, averaged, *color_and_dashes, name, width=width, dots=method.probed, transform=transform)
