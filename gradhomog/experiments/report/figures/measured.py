"""Quantities that homogenizers report during training, such as rotation angles and drop rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from gradhomog.experiments.report.figures import lines, style
from gradhomog.experiments.report.figures.curves import Curve, average
from gradhomog.experiments.report.figures.runs import Runs, curve, runs_of
from gradhomog.experiments.results.events import Record, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 3
MOST = 12
"""Panels; of more quantities the first are shown."""

_BEFORE, _AFTER = "_before", "_after"


def measured(records: Iterable[Record]) -> Figure | None:
    """One panel per module and quantity, one line per method; None if nothing was measured.

    Running means over a tenth of training, averaged over seeds. Of a quantity with one number per task: the mean over
    tasks, and a band from the lowest to the highest. `x_before` and `x_after` share a panel, before dashed.
    """
    runs = {key: group for key, group in runs_of(records, "step").items() if any(map(_tells, group))}
    quantities = _quantities(runs)
    if not quantities:
        return None
    few = dict(list(quantities.items())[:MOST])
    look = style.colors([label for _, label in runs])
    several = len({learner for learner, _ in runs}) > 1
    across = min(ACROSS, len(few))
    down = math.ceil(len(few) / across)
    with style.drawing():
        width = style.WIDTH * (0.4 + 0.27 * across)
        figure, axes = style.panels(down, across, 0.4 + 1.85 * down, width, sharex=True)
        flat = [panel for row in axes for panel in row]
        for panel in flat[len(few) :]:
            panel.set_visible(False)
        for index, (panel, (name, members)) in enumerate(zip(flat, few.items(), strict=False)):
            for place, ((learner, label), group) in enumerate(runs.items()):
                width = max(1.2, lines.BROAD - 0.5 * place)  # one module often measures the same in several methods
                text = style.wrapped(f"{label} ({learner})" if several else label)
                for member in members:
                    before = len(members) > 1 and member[1].endswith(_BEFORE)
                    of = _curve(group, member)
                    if any(map(math.isfinite, of.middle)):
                        lines.draw(
                            panel, of, look[label][0], "--" if before else "-", "_" if before else text,
                            width=width, band=of.low != of.high,
                        )  # fmt: skip
            paired = "\n(before: dashed)" if len(members) > 1 else ""
            panel.set_title(style.wrapped(_title(*name), 30) + paired)
            if index + across >= len(few):
                lines.step_axis(panel)
        if len(quantities) > len(few):
            note = f"{len(quantities) - len(few)} more quantities are in events.jsonl"
            figure.supxlabel(note, fontsize=7.5, color=style.GUIDE)
        style.legend(figure, flat[: len(few)])
    return figure


def _title(module: str, name: str) -> str:
    """`drop_rate.layer` as `module: drop rate (layer)`."""
    quantity, _, part = name.partition(".")
    return f"{module}: {quantity.replace('_', ' ')}{f' ({part})' if part else ''}"


def _tells(run: list[Record]) -> bool:
    return any(record.get("measured") for record in run)


def _quantities(runs: Runs) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """By module and name of a panel, the module and names of what is in it."""
    found: dict[tuple[str, str], None] = {}
    for group in runs.values():
        for run in group:
            for record in run:
                for module, values in (record.get("measured") or {}).items():
                    found.update({(module, name): None for name in values})
    panels: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for module, name in found:
        other = _other(name)
        stem = name.removesuffix(_BEFORE).removesuffix(_AFTER) if other and (module, other) in found else name
        panels.setdefault((module, stem), []).append((module, name))
    return panels


def _other(name: str) -> str | None:
    """The other of `x_before` and `x_after`."""
    for one, two in ((_BEFORE, _AFTER), (_AFTER, _BEFORE)):
        if name.endswith(one):
            return name.removesuffix(one) + two
    return None


def _curve(group: list[list[Record]], member: tuple[str, str]) -> Curve:
    """Mean, least and largest over tasks, each averaged over runs."""

    def of(pick: Callable[[list[float]], float]) -> Curve:
        return average([curve(run, lambda record: pick(_values(record, member))) for run in group])

    middle = of(lambda values: math.fsum(values) / len(values) if values else math.nan)
    low = of(lambda values: min(values, default=math.nan)).middle
    high = of(lambda values: max(values, default=math.nan)).middle
    return Curve(middle.steps, middle.middle, low, high)


def _values(record: Record, member: tuple[str, str]) -> list[float]:
    module, name = member
    value: Any = ((record.get("measured") or {}).get(module) or {}).get(name)
    found = numbers(value if isinstance(value, list) else [value])
    return [number for number in found if math.isfinite(number)]
