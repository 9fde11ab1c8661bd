"""Agreement of the tasks' gradients before and after each homogenizer of a pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradhomog.experiments.report.figures import lines, style
from gradhomog.experiments.report.figures.agreement import mean_cosine, norm_ratio, relative_distance
from gradhomog.experiments.report.figures.curves import average
from gradhomog.experiments.report.figures.runs import curve, runs_of
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.plan import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Chain:
    """The rows of one method: before its modules (`plain`) and after each, by run.

    Attributes:
        names: `plain`, then the modules in their order; one that occurs twice is called `name#2` the second time.
        runs: by run, records that hold `step` and as many `stages` as there are names.
        probed: whether all stages are of the same tasks at the same parameters, with and without each module.
    """

    learner: str
    label: str
    names: tuple[str, ...]
    runs: Sequence[Sequence[Record]]
    probed: bool


def stages(records: Iterable[Record]) -> Figure | None:
    """One row of panels per method: mean cosine, ratio of norms and distance of the tasks' rows, one line per module.

    Of probes where a method has them (a module that acts before rows exist is only seen there), else of the steps, as
    running means over a tenth of training. Averaged over seeds. None if no record has stages.
    """
    chains = chains_of(records)
    if not chains:
        return None
    look = style.colors([name for chain in chains for name in chain.names])
    several = len({chain.learner for chain in chains}) > 1
    with style.drawing():
        height = 0.4 + 1.5 * len(chains)
        figure, axes = style.panels(len(chains), 3, height, 1.15 * style.WIDTH, sharex="col", sharey="col")
        for chain, (left, middle, right) in zip(chains, axes, strict=True):
            left.axhline(0, **style.GUIDE_LINE)
            right.axhline(math.sqrt(2), **style.GUIDE_LINE)
            for index, name in enumerate(chain.names):
                shown = _Shown(chain, index, look[name])
                shown.draw(left, mean_cosine)
                # The axis is logarithmic, and so is the mean.
                shown.draw(middle, lambda stage: math.log(norm_ratio(stage)), math.exp)
                shown.draw(right, relative_distance)
            left.set_ylabel("cosine")
            middle.set_ylabel("norm ratio")
            right.set_ylabel("distance")
            lines.ratio_axis(middle)
            title = f"{chain.label} ({chain.learner})" if several else chain.label
            # Outside the layout: a long text may reach over the panels beside it.
            left.set_title(" ")
            place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "in_layout": False}
            left.annotate(title, (0, 1), (0, 5), fontsize=9, **place)
            right.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), handlelength=1.6, fontsize=8)
        for panel in axes[-1]:
            lines.step_axis(panel)
    return figure


def chains_of(records: Iterable[Record]) -> list[Chain]:
    """The stages of each method that has homogenizers; none for a log of an older version."""
    records = list(records)
    probes, steps = runs_of(records, "probe"), runs_of(records, "step")
    found = []
    for learner, label in {**steps, **probes}:
        probed = (learner, label) in probes
        group = probes[learner, label] if probed else [[_before(step) for step in run] for run in steps[learner, label]]
        names = {tuple(_unique([stage["name"] for stage in record["stages"]])) for run in group for record in run}
        if len(names) == 1 and len(only := names.pop()) > 1:
            found.append(Chain(learner, label, only, group, probed))
    return found


def _before(step: Record) -> Record:
    """A step as a probe has it: with the rows before homogenization as the first stage."""
    before = {"name": PLAIN, "norms": step["norms"], "cosines": step["cosines"]}
    return {"step": step["step"], "stages": [before, *(step.get("stages") or ())]}


def _unique(names: Sequence[str]) -> list[str]:
    counts = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [name if count == 1 else f"{name}#{count}" for name, count in zip(names, counts, strict=True)]


@dataclass(frozen=True)
class _Shown:
    """One line of a method's panels."""

    chain: Chain
    index: int
    look: tuple[str, str]

    def draw(self, panel: Axes, value: Callable[[Record], float], shown: Callable[[float], float] = float) -> None:
        probed = self.chain.probed

        def of_stage(record: Record) -> float:
            return value(record["stages"][self.index])

        averaged = average([curve(run, of_stage, smooth=not probed) for run in self.chain.runs])
        modules = len(self.chain.names) - 1
        width = min(1.2 + 0.4 * (modules - self.index), 2.2) if self.index else lines.BROAD
        name = style.wrapped(f"after {self.chain.names[self.index]}", 20) if self.index else "before"
        lines.draw(panel, averaged, *self.look, name, width=width, dots=probed, shown=shown)
