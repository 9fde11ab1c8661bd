"""The report of an experiment: table as text, figure, and a self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradhomog.experiments.report.figures import style
from gradhomog.experiments.report.formatting import interval_text, number_text, seeds_text
from gradhomog.experiments.report.svg import inline_svg
from gradhomog.experiments.reproduce import page
from gradhomog.experiments.reproduce.protocol import NAMES
from gradhomog.experiments.reproduce.table import Cell, Table
from gradhomog.table import NOTHING
from gradhomog.table import Cell as TextCell
from gradhomog.table import Table as TextTable

SALIENCY = (
    "Rows: images, SmoothGrad saliency of each network adapted to its task, and for ISI the probability with which "
    "activations are dropped. One image of each benchmark."
)

INCOMPLETE = (
    "†: no comparison with the paper, because data of the column are missing or not complete, see Data. A column of "
    "strong generalization uses all nine benchmarks."
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADER = (
    "column", "row", "accuracy %", "± episodes", "difference to plain", "seeds for 1 point", "paper %", "ours − paper",
    "seeds",
)  # fmt: skip
CAPTION = (
    "Mean and 95 % interval over seeds (dots), the paper's number (crosses) with its interval over test tasks. Chance "
    "is 20 % with five ways."
)


def text_table(table: Table, description: Mapping[str, Any]) -> TextTable:
    """The table as text, with notes about its numbers."""
    return TextTable(HEADER, [_row(cell) for cell in table.cells], notes(table, description), sticky=1)


def write_page(table: Table, description: Mapping[str, Any], folder: Path) -> Path:
    """Write `report.html` and, if matplotlib is installed, `figures/table.svg` and `.png`; return the page's path."""
    shown = page.save_figure(lambda: draw(table), folder, "Accuracies", CAPTION)
    if table.experiment == "saliency":
        shown += _saliency_figures(folder, description["parts"])
    return page.write_page(folder, description, text_table(table, description), shown)


def _saliency_figures(folder: Path, parts: Mapping[str, str]) -> list[page.PageFigure]:
    """Title, SVG and caption of the saliency maps of each comparison."""
    found = []
    for name in parts:
        path = folder / name / "figures" / "saliency.svg"
        if path.exists():
            title = f"Saliency, {name}"
            found.append((title, inline_svg(path.read_text(encoding="utf-8"), f"saliency-{name}", title), SALIENCY))
    return found


def notes(table: Table, description: Mapping[str, Any]) -> list[str]:
    """Sentences about scale, data and intervals."""
    several = any(len(cell.seed_scores) > 1 for cell in table.cells)
    return [
        *scale_notes(description),
        "accuracy: ± 95 % interval over " + ("seeds (Student t)." if several else "test episodes, because of one seed.")
        + f" ± episodes: 95 % interval over {table.test_episodes or 'the'} test episodes of one training, "
        "t(n − 1) s/√n, mean over seeds.",
        f"difference to plain: paired by {'seed' if several else 'test episode'}; *: the interval excludes 0, not "
        "corrected for the number of rows. seeds for 1 point: seeds that detect a difference of one percentage point "
        "(power 80 %, two-sided 5 %).",
        "The paper prints no number of training seeds; its intervals are over test tasks.",
        *([INCOMPLETE] if any(cell.published and not cell.is_comparable for cell in table.cells) else []),
        *([f"Missing: {'; '.join(table.missing)}."] if table.missing else []),
    ]  # fmt: skip


def scale_notes(description: Mapping[str, Any]) -> list[str]:
    """Sentences about the scale and the benchmarks that are present."""
    data, differences = description["data"], description["differences"]
    lists = {
        "not complete": [f"{name} ({data[name]}: {text})" for name, text in differences.items()],
        "missing": [name for name in NAMES if name not in data],
    }
    text = "".join(f"; {title}: {', '.join(names)}" for title, names in lists.items() if names)
    return [
        page.scale_note(description),
        f"Data: {len(data) - len(differences)} of {len(NAMES)} benchmarks present and complete{text}.",
    ]


def draw(table: Table) -> Figure | None:
    """Accuracies by column, one panel each: our means with intervals, and the paper's."""
    if not table.cells:
        return None
    columns = {name: [cell for cell in table.cells if cell.column == name] for name in table.columns}
    heights = [len(cells) for cells in columns.values()]
    with style.figure_style():
        figure, axes = style.make_panels(
            len(columns), 1, 0.5 + 0.24 * sum(heights) + 0.35 * len(heights), height_ratios=heights, sharex=True
        )
        for (name, cells), (panel,) in zip(columns.items(), axes, strict=True):
            _draw_panel(panel, name, cells)
        axes[-1][0].set_xlabel("test accuracy (%)")
    return figure


def _draw_panel(panel: Any, title: str, cells: Sequence[Cell]) -> None:
    positions = range(len(cells))
    widths = [0.0 if math.isnan(cell.ours.half_width) else 100 * cell.ours.half_width for cell in cells]
    means = [100 * cell.ours.mean for cell in cells]
    panel.errorbar(means, positions, xerr=widths, fmt="o", markersize=3.5, color=style.PALETTE[0], label="ours")
    printed = [(cell.published, y) for cell, y in zip(cells, positions, strict=True) if cell.published is not None]
    if printed:
        panel.errorbar(
            [score.mean for score, _ in printed], [y for _, y in printed],
            xerr=[score.half_width or 0.0 for score, _ in printed], fmt="x", color=style.PLAIN_COLOR, label="paper",
        )  # fmt: skip
    panel.set_yticks(positions, [cell.row for cell in cells])
    panel.invert_yaxis()
    panel.set_title(title)


def _row(cell: Cell) -> list[TextCell | str]:
    difference, printed = cell.to_plain, cell.published
    excludes_zero = difference is not None and abs(difference.mean) > difference.half_width
    return [
        cell.column,
        cell.row,
        TextCell(interval_text(cell.ours, "accuracy"), cell.ours.mean),
        TextCell(
            NOTHING if math.isnan(cell.half_width_episodes) else number_text(cell.half_width_episodes, "accuracy"), ""
        ),
        TextCell(
            NOTHING if difference is None else interval_text(difference, "accuracy", True) + " *" * excludes_zero,
            difference.mean if difference else None,
        ),
        TextCell(seeds_text(cell.seeds_needed), cell.seeds_needed),
        TextCell(
            NOTHING
            if printed is None
            else f"{printed.mean:.2f}" + (f" ± {printed.half_width:.2f}" if printed.half_width is not None else ""),
            printed.mean if printed else None,
        ),
        TextCell(
            NOTHING + " †" * bool(cell.published)
            if cell.to_published is None
            else number_text(cell.to_published, "accuracy", True),
            cell.to_published,
        ),
        TextCell(str(len(cell.seed_scores)), len(cell.seed_scores)),
    ]
