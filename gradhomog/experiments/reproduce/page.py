"""Text and HTML page of an experiment's table, with notes and figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradhomog.experiments.report import figures
from gradhomog.experiments.report.html import environment
from gradhomog.experiments.report.svg import inline_svg
from gradhomog.experiments.results.atomic_files import write_bytes
from gradhomog.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT, FIGURES = "report.html", "figures"

PageFigure = tuple[str, Any, str]
"""Title, SVG and caption."""


def save_figure(draw: Callable[[], Figure | None], folder: Path, title: str, caption: str) -> list[PageFigure]:
    """Write the figure as `figures/table.svg` and `.png`, if matplotlib is installed; return it for the page."""
    try:
        if (figure := draw()) is None:
            return []
        saved, _ = figures.save(figure, folder / FIGURES / "table")
    except figures.MissingMatplotlib as error:
        print(f"{error}", file=sys.stderr)
        return []
    return [(title, inline_svg(saved.read_text(encoding="utf-8"), "table", title), caption)]


def write_page(
    folder: Path,
    description: Mapping[str, Any],
    table: Table,
    page_figures: Sequence[PageFigure],
) -> Path:
    """Write `report.html`, and return its path.

    Args:
        folder: the output folder of the experiment.
        description: settings of the experiment, as in its folder; `data`, if present, maps benchmarks to files, and
            `differences` to their differences from the published ones.
        table: our numbers and the paper's, with notes.
        page_figures: title, SVG and caption of each figure.
    """
    shown = ("parts", "contents", "data", "differences")
    data, differences = description.get("data", {}), description.get("differences", {})
    page = (
        environment()
        .get_template("reproduction.html")
        .render(
            title=f"gradhomog: reproduction of `{description['experiment']}`",
            contents=description["contents"],
            table=table,
            figures=page_figures,
            parts=description["parts"],
            facts={key: _fact(value) for key, value in description.items() if key not in shown},
            data={name: "; ".join(filter(None, [file, differences.get(name)])) for name, file in data.items()},
        )
    )
    path = folder / REPORT
    write_bytes(path, page.encode())
    return path


def scale_note(description: Mapping[str, Any]) -> str:
    """A sentence about the scale and the overrides."""
    overrides = description["overrides"]
    changed = f"; changed by {', '.join(overrides)}" if overrides else ""
    return f"Scale {description['scale']}: {description['scale_summary']}{changed}."


def _fact(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
