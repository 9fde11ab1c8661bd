"""Figure of the quantities that homogenizers report during training, such as rotation angles and drop rates."""

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

MAX_COLUMNS = 3
MAX_PANELS = 12
"""Further quantities have no panel."""

_BEFORE, _AFTER = "_before", "_after"


def measurements(records: Iterable[Record]) -> Figure | None:
    """One panel per module and quantity, one line per method; None without measurements.

    Running means over a tenth of training, averaged over seeds. For a quantity with one number per task: the mean over
    tasks, and a band for the range over tasks. `x_before` and `x_after` share a panel; the line of `x_before` is
    dashed.
    """
    runs = {key: group for key, group in runs_of(records, "step").items() if any(map(_has_measurements, group))}
    quantities = _quantities(runs)
    if not quantities:
        return None
    drawn = dict(list(quantities.items())[:MAX_PANELS])
    colors = style.colors([label for _, label in runs])
    several = len({learner for learner, _ in runs}) > 1
    with style.figure_style():
        figure, panels, lowest, _ = style.make_panel_list(len(drawn), MAX_COLUMNS, 1.85, 1.95, sharex=True)
        for panel, (name, members) in zip(panels, drawn.items(), strict=True):
            for place, ((learner, label), group) in enumerate(runs.items()):
                # Lines of a module often coincide in several methods, so each is narrower than the one below it.
                width = max(1.2, lines.REFERENCE_WIDTH - 0.5 * place)
                text = style.wrap_label(f"{label} ({learner})" if several else label)
                for member in members:
                    before = len(members) > 1 and member[1].endswith(_BEFORE)
                    averaged = _average_curve(group, member)
                    if any(map(math.isfinite, averaged.middle)):
                        lines.draw(
                            panel, averaged, colors[label][0], "--" if before else "-", "_" if before else text,
                            width=width, band=averaged.low != averaged.high,
                        )  # fmt: skip
            paired = "\n(before: dashed)" if len(members) > 1 else ""
            panel.set_title(style.wrap_label(_title(*name), 30) + paired)
        for panel in lowest:
            lines.step_axis(panel)
        if len(quantities) > len(drawn):
            note = f"{len(quantities) - len(drawn)} more quantities are in events.jsonl"
            figure.supxlabel(note, fontsize=7.5, color=style.GUIDE_COLOR)
        style.add_legend(figure, panels)
    return figure


def _title(module: str, name: str) -> str:
    """The title of a panel: `module: drop rate (layer)` for the quantity `drop_rate.layer`."""
    quantity, _, part = name.partition(".")
    return f"{module}: {quantity.replace('_', ' ')}{f' ({part})' if part else ''}"


def _has_measurements(run: list[Record]) -> bool:
    return any(record.get("measured") for record in run)


def _quantities(runs: Runs) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """The (module, name) of the quantities of each panel, by the (module, name) of the panel."""
    quantities: dict[tuple[str, str], None] = {}
    for group in runs.values():
        for run in group:
            for record in run:
                for module, values in (record.get("measured") or {}).items():
                    quantities.update({(module, name): None for name in values})
    panels: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for module, name in quantities:
        other = _counterpart(name)
        stem = name.removesuffix(_BEFORE).removesuffix(_AFTER) if other and (module, other) in quantities else name
        panels.setdefault((module, stem), []).append((module, name))
    return panels


def _counterpart(name: str) -> str | None:
    """`x_after` for `x_before` and vice versa; None for other names."""
    for suffix, other in ((_BEFORE, _AFTER), (_AFTER, _BEFORE)):
        if name.endswith(suffix):
            return name.removesuffix(suffix) + other
    return None


def _average_curve(group: list[list[Record]], member: tuple[str, str]) -> Curve:
    """Mean, minimum and maximum over tasks, each averaged over runs."""

    def averaged(reduce: Callable[[list[float]], float]) -> Curve:
        return average([curve(run, lambda record: reduce(_values(record, member))) for run in group])

    middle = averaged(lambda values: math.fsum(values) / len(values) if values else math.nan)
    low = averaged(lambda values: min(values, default=math.nan)).middle
    high = averaged(lambda values: max(values, default=math.nan)).middle
    return Curve(middle.steps, middle.middle, low, high)


def _values(record: Record, member: tuple[str, str]) -> list[float]:
    module, name = member
    value: Any = ((record.get("measured") or {}).get(module) or {}).get(name)
    values = numbers(value if isinstance(value, list) else [value])
    return [number for number in values if math.isfinite(number)]
