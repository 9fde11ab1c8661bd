"""The report: the table as text, and a self-contained HTML page with a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradhomog.experiments.report.figures import style
from gradhomog.experiments.reproduce import page
from gradhomog.experiments.reproduce.pinn.columns import COLUMNS
from gradhomog.experiments.reproduce.pinn.methods import TWO_LOSSES_TRACKED
from gradhomog.experiments.reproduce.pinn.table import Cell, Table
from gradhomog.table import NOTHING
from gradhomog.table import Cell as TextCell
from gradhomog.table import Table as TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADER = (
    "column", "row", "error", "median", "difference to Adam", "paper (sd)", "ours / paper", "CPU ms per step", "seeds",
)  # fmt: skip
TRACKED = (
    "Tracked rows: the tested state has the lowest sum of losses, of which a step computes one; the others are of "
    "earlier steps."
)
CAPTION = "Errors of single runs (dots), our mean (bar), and the paper's mean (cross). The axis is logarithmic."


def text_table(table: Table, description: Mapping[str, Any]) -> TextTable:
    """The table as text, with notes about its numbers."""
    readable = has_readable_scale(description)
    rows = [_row(cell, cell.ratio if readable else None) for cell in table.cells]
    return TextTable(HEADER, rows, notes(table, description), sticky=1)


def write_page(table: Table, description: Mapping[str, Any], folder: Path) -> Path:
    """Write `report.html` and, if matplotlib is installed, `figures/table.svg` and `.png`; return the page's path."""
    shown = page.save_figure(lambda: draw(table, has_readable_scale(description)), folder, "Errors", CAPTION)
    return page.write_page(folder, description, text_table(table, description), shown)


def notes(table: Table, description: Mapping[str, Any]) -> list[str]:
    """Sentences about scale, errors and tuned rows."""
    errors = "; ".join(f"{name}: {COLUMNS[name].error}" for name in table.columns)
    sources = dict.fromkeys(COLUMNS[name].paper for name in table.columns)
    chosen = "; ".join(f"{cell.column}, {cell.row}: {cell.chosen}" for cell in table.cells if cell.chosen)
    return [
        page.scale_note(description),
        f"error: {errors}; mean over seeds ± half of a 95 % Student interval."
        if errors
        else "error: mean over seeds ± half of a 95 % Student interval.",
        "difference to Adam: paired by seed; *: the interval excludes 0, not corrected for the number of rows.",
        *([f"paper: {'; '.join(sources)}."] if sources else []),
        *([TRACKED] if any(cell.row in TWO_LOSSES_TRACKED for cell in table.cells) else []),
        *([f"Chosen: {chosen}."] if chosen else []),
        *([f"Missing: {'; '.join(table.missing)}."] if table.missing else []),
    ]


def has_readable_scale(description: Mapping[str, Any]) -> bool:
    """False for the scale that only checks the command: its errors are not compared with the papers'."""
    return bool(description["scale"] != "smoke")


def draw(table: Table, with_published: bool = True) -> Figure | None:
    """Errors of all runs by column, one panel each."""
    if not table.cells:
        return None
    columns = {name: [cell for cell in table.cells if cell.column == name] for name in table.columns}
    heights = [len(cells) for cells in columns.values()]
    with style.figure_style():
        figure, axes = style.make_panels(
            len(columns), 1, 0.5 + 0.24 * sum(heights) + 0.45 * len(heights), height_ratios=heights
        )
        for (name, cells), (panel,) in zip(columns.items(), axes, strict=True):
            for y, cell in enumerate(cells):
                values = [value for value in cell.seed_errors.values() if math.isfinite(value)]
                panel.plot(values, [y] * len(values), "o", markersize=3, color=style.PALETTE[0])
                panel.plot([cell.ours.mean], [y], "|", markersize=10, color=style.PALETTE[0])
                if with_published and cell.published is not None:
                    panel.plot([cell.published.mean], [y], "x", color=style.PLAIN_COLOR)
            panel.set_xscale("log")
            panel.set_yticks(range(len(cells)), [cell.row for cell in cells])
            panel.invert_yaxis()
            panel.set_title(COLUMNS[name].title)
            panel.set_xlabel(COLUMNS[name].error)
    return figure


def _row(cell: Cell, ratio: float | None) -> list[TextCell | str]:
    difference, printed = cell.to_plain, cell.published
    excludes_zero = difference is not None and abs(difference.mean) > difference.half_width
    deviation = f" ({_number(printed.deviation)})" if printed is not None and printed.deviation is not None else ""
    step = NOTHING if cell.step_seconds is None else f"{1000 * cell.step_seconds:.2f}"
    return [
        cell.column,
        cell.row,
        TextCell(f"{_number(cell.ours.mean)} ± {_number(cell.ours.half_width)}", cell.ours.mean),
        TextCell(_number(cell.median), cell.median),
        TextCell(
            NOTHING
            if difference is None
            else f"{difference.mean:+.3g} ± {_number(difference.half_width)}" + " *" * excludes_zero,
            difference.mean if difference else None,
        ),
        TextCell(
            NOTHING if printed is None else f"{printed.mean:.4g}{deviation}",
            printed.mean if printed else None,
        ),
        TextCell(NOTHING if ratio is None else f"{ratio:.3g}", ratio),
        TextCell(step, cell.step_seconds),
        TextCell(str(len(cell.seed_errors)), len(cell.seed_errors)),
    ]


def _number(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.3g}"
