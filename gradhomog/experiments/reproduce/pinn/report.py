"""The report: the table as text, and a self-contained HTML page with a figure."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradhomog.experiments.report import figures
from gradhomog.experiments.report.figures import style
from gradhomog.experiments.report.formatting import NOTHING
from gradhomog.experiments.report.html import environment
from gradhomog.experiments.report.html_table import Cell as HtmlCell
from gradhomog.experiments.report.html_table import Table as HtmlTable
from gradhomog.experiments.report.html_table import number_key, text_cell
from gradhomog.experiments.report.svg import inline_svg
from gradhomog.experiments.reproduce.pinn.experiment import COLUMNS
from gradhomog.experiments.reproduce.pinn.table import Cell, Table
from gradhomog.experiments.reproduce.report import FIGURES, REPORT
from gradhomog.text_table import align_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADER = (
    "column", "row", "error", "median", "difference to Adam", "paper (sd)", "ours / paper", "ms per step", "seeds",
)  # fmt: skip
CAPTION = "Errors of single runs (dots), our mean (bar), and the paper's mean (cross). The axis is logarithmic."


def render_text(table: Table, description: Mapping[str, Any]) -> str:
    """The table as aligned plain text, followed by notes about its numbers."""
    if not table.cells:
        return "\n".join(["No run has finished, so there is no table.", *notes(table, description)])
    lines = align_columns([HEADER, *([cell.text for cell in _row(cell)] for cell in table.cells)])
    return "\n".join([*lines, "", *notes(table, description)])


def write_page(table: Table, description: Mapping[str, Any], folder: Path) -> Path:
    """Write `report.html` and, if matplotlib is installed, `figures/table.svg` and `.png`; return the page's path."""
    shown: list[tuple[str, Any, str]] = []
    try:
        if (figure := draw(table)) is not None:
            saved, _ = figures.save(figure, folder / FIGURES / "table")
            shown.append(("Errors", inline_svg(saved.read_text(encoding="utf-8"), "table", "Errors"), CAPTION))
    except figures.MissingMatplotlib as error:
        print(f"{error}", file=sys.stderr)
    page = (
        environment()
        .get_template("reproduction.html")
        .render(
            title="gradhomog: reproduction of `pinn`",
            contents=description["contents"],
            table=HtmlTable(HEADER, [_row(cell) for cell in table.cells], sticky=1) if table.cells else None,
            notes=notes(table, description),
            figures=shown,
            parts=description["parts"],
            facts={
                key: ", ".join(value) if isinstance(value, list) else str(value)
                for key, value in description.items()
                if key not in ("parts", "contents")
            },
            data={},
        )
    )
    path = folder / REPORT
    path.write_text(page, encoding="utf-8")
    return path


def notes(table: Table, description: Mapping[str, Any]) -> list[str]:
    """Sentences about scale, errors and tuned rows."""
    overrides = description["overrides"]
    errors = "; ".join(f"{name}: {COLUMNS[name].error}" for name in table.columns)
    chosen = "; ".join(f"{cell.column}, {cell.row}: {cell.chosen}" for cell in table.cells if cell.chosen)
    return [
        f"Scale {description['scale']}: {description['scale_summary']}"
        + (f"; changed by {', '.join(overrides)}." if overrides else "."),
        f"error: {errors}; mean over seeds ± half of a 95 % Student interval."
        if errors
        else "error: mean over seeds ± half of a 95 % Student interval.",
        "difference to Adam: paired by seed; *: the interval excludes 0, not corrected for the number of rows.",
        "paper: DCGD's Table 1 (mean and standard deviation of ten runs of 50,000 steps); burgers_config: ConFIG's "
        "notebook (one run of 5,000 steps).",
        *([f"Chosen: {chosen}."] if chosen else []),
        *([f"Missing: {'; '.join(table.missing)}."] if table.missing else []),
    ]


def draw(table: Table) -> Figure | None:
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
                if cell.published is not None:
                    panel.plot([cell.published.mean], [y], "x", color=style.PLAIN_COLOR)
            panel.set_xscale("log")
            panel.set_yticks(range(len(cells)), [cell.row for cell in cells])
            panel.invert_yaxis()
            panel.set_title(COLUMNS[name].title)
            panel.set_xlabel(COLUMNS[name].error)
    return figure


def _row(cell: Cell) -> list[HtmlCell]:
    difference, printed = cell.to_plain, cell.published
    excludes_zero = difference is not None and abs(difference.mean) > difference.half_width
    deviation = f" ({_number(printed.deviation)})" if printed is not None and printed.deviation is not None else ""
    step = NOTHING if cell.step_seconds is None else f"{1000 * cell.step_seconds:.2f}"
    return [
        text_cell(cell.column),
        text_cell(cell.row),
        HtmlCell(f"{_number(cell.ours.mean)} ± {_number(cell.ours.half_width)}", number_key(cell.ours.mean)),
        HtmlCell(_number(cell.median), number_key(cell.median)),
        HtmlCell(
            NOTHING
            if difference is None
            else f"{difference.mean:+.3g} ± {_number(difference.half_width)}" + " *" * excludes_zero,
            number_key(difference.mean if difference else None),
        ),
        HtmlCell(
            NOTHING if printed is None else f"{printed.mean:.4g}{deviation}",
            number_key(printed.mean if printed else None),
        ),
        HtmlCell(NOTHING if cell.ratio is None else f"× {cell.ratio:.3g}", number_key(cell.ratio)),
        HtmlCell(step, number_key(cell.step_seconds)),
        HtmlCell(str(len(cell.seed_errors)), str(len(cell.seed_errors))),
    ]


def _number(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.3g}"
