"""The report of an experiment: its table with notes, its figure, and a self-contained HTML page."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.report import figures
from gradhomog.experiments.report.figures import style
from gradhomog.experiments.report.page import environment, inline_svg
from gradhomog.experiments.report.tables import interval_text, number_text, seeds_text
from gradhomog.experiments.reproduce.paper_schema import Paper
from gradhomog.experiments.reproduce.results import Result, Results
from gradhomog.experiments.results.atomic_files import write_bytes
from gradhomog.table import NOTHING, Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT, FIGURES = "report.html", "figures"

PageFigure = tuple[str, Any, str]
"""Title, SVG and caption."""

CAPTION = "Scores of single runs (dots), our mean with its 95 % interval (bars), and the paper's number (crosses)."
SALIENCY = (
    "Rows: images, SmoothGrad saliency of each network adapted to its task, and for ISI the probability with which "
    "activations are dropped. One image of each benchmark."
)
INCOMPLETE = (
    "†: no comparison with the paper, because data of the column, for training or test, are missing or incomplete, see "
    "Data."
)
EXPLANATIONS = {
    "episodes": "± episodes: 95 % interval over {episodes} test episodes of one training, t(n − 1) s/√n, mean over "
    "seeds.",
    "difference": "{difference}: paired by {unit}; *: the interval excludes 0, not corrected for the number of rows.",
    "seeds_needed": "seeds for 1 point: seeds that detect a difference of one percentage point (power 80 %, two-sided "
    "5 %).",
}  # fmt: skip
"""Notes by statistic."""


def text_table(paper: Paper, results: Results, description: Mapping[str, Any]) -> Table:
    """The table of the results, with notes about its numbers."""
    compared = paper.scales[description["scale"]].compared
    columns: list[Column[Result]] = [
        Column("column", lambda result: result.column, lambda result: result.column),
        Column("row", lambda result: result.row, lambda result: result.row),
        *(statistic(name, title, paper.spread, compared) for name, title in paper.statistics.items()),
    ]
    return Table.of(columns, results.rows, notes(paper, results, description), sticky=1)


def statistic(name: str, title: str, spread: str, compared: bool) -> Column[Result]:
    """A column of the table, see `paper.STATISTICS`; numbers are not compared with the paper's if not `compared`."""

    def known(value: float | None, text: Callable[[float], str]) -> str:
        return NOTHING if value is None or math.isnan(value) else text(value)

    def difference(result: Result) -> str:
        if (to_plain := result.to_plain) is None:
            return NOTHING
        return interval_text(to_plain, result.metric, True) + " *" * (abs(to_plain.mean) > to_plain.half_width)

    def published(result: Result) -> str:
        if result.published is None:
            return NOTHING
        mean, *spreads = (f"{value:.2f}" if metric(result.metric).percent else f"{value:.4g}"
                          for value in result.published)  # fmt: skip
        return mean + "".join(f" ± {text}" if spread == "half_width" else f" ({text})" for text in spreads)

    def excess(result: Result) -> str:
        text = known(result.excess, lambda value: number_text(value, result.metric, True))
        return text + " †" * (result.published is not None and result.excess is None)

    def number(value: float | None, kind: str) -> str:
        return known(value, lambda known_value: number_text(known_value, kind))

    columns: dict[str, tuple[Callable[[Result], str], Callable[[Result], float | None]]] = {
        "score": (lambda result: interval_text(result.ours, result.metric), lambda result: result.ours.mean),
        "episodes": (
            lambda result: number(result.half_width_episodes, result.metric), lambda result: result.half_width_episodes,
        ),
        "median": (lambda result: number(result.median, result.metric), lambda result: result.median),
        "difference": (difference, lambda result: result.to_plain.mean if result.to_plain else None),
        "seeds_needed": (lambda result: seeds_text(result.seeds_needed), lambda result: result.seeds_needed),
        "published": (published, lambda result: result.published[0] if result.published else None),
        "excess": (excess, lambda result: result.excess),
        "ratio": (
            lambda result: known(result.ratio if compared else None, "{:.3g}".format),
            lambda result: result.ratio if compared else None,
        ),
        "milliseconds": (
            lambda result: known(result.step_seconds, lambda value: f"{1000 * value:.2f}"),
            lambda result: result.step_seconds,
        ),
        "seeds": (lambda result: str(len(result.seed_scores)), lambda result: len(result.seed_scores)),
    }  # fmt: skip
    return Column(title, *columns[name])


def notes(paper: Paper, results: Results, description: Mapping[str, Any]) -> list[str]:
    """Sentences about scale, data, intervals, sources and tuned rows."""
    several = any(len(result.seed_scores) > 1 for result in results.rows)
    protocols = {result.column: paper.protocols[result.protocol] for result in results.rows}
    scores = "".join(f"{column}: {one.score}; " for column, one in protocols.items() if one.score)
    sources = dict.fromkeys(one.source for one in protocols.values() if one.source)
    chosen = "; ".join(f"{one.column}, {one.row}: {one.chosen}" for one in results.rows if one.chosen)
    sampled = "episodes" in paper.statistics
    sample = "test episodes, because of one seed" if sampled and not several else "seeds (Student t)"
    words = {
        "episodes": results.test_episodes or "the", "unit": "seed" if several or not sampled else "test episode",
        "difference": paper.statistics.get("difference"),
    }  # fmt: skip
    return [
        *scale_notes(paper, description),
        f"{paper.statistics.get('score', 'score').removesuffix(' %')}: {scores}mean ± 95 % interval over {sample}.",
        *(text.format(**words) for name, text in EXPLANATIONS.items() if name in paper.statistics),
        *paper.notes,
        *([f"paper: {'; '.join(sources)}."] if sources else []),
        *([INCOMPLETE] if any(one.published and not one.is_comparable for one in results.rows) else []),
        *([f"Chosen: {chosen}."] if chosen and not sampled else []),
        *([f"Missing: {'; '.join(results.missing)}."] if results.missing else []),
    ]


def scale_notes(paper: Paper, description: Mapping[str, Any]) -> list[str]:
    """Sentences about the scale and the benchmarks that are present."""
    overrides, data, differences = (description[key] for key in ("overrides", "data", "differences"))
    changed = f"; changed by {', '.join(overrides)}" if overrides else ""
    found = [f"Scale {description['scale']}: {description['scale_summary']}{changed}."]
    if paper.benchmarks:
        lists = {
            "not complete": [f"{name} ({data[name]}: {text})" for name, text in differences.items()],
            "missing": [name for name in paper.benchmarks if name not in data],
        }
        text = "".join(f"; {title}: {', '.join(names)}" for title, names in lists.items() if names)
        complete = len(data) - len(differences)
        found.append(f"Data: {complete} of {len(paper.benchmarks)} benchmarks present and complete{text}.")
    return found


def write_page(paper: Paper, results: Results, description: Mapping[str, Any], folder: Path) -> Path:
    """Write `report.html` and, if matplotlib is installed, `figures/table.svg` and `.png`; return the page's path."""
    caption = f"{CAPTION} {paper.caption}"
    shown: list[PageFigure] = []
    try:
        if (figure := draw(paper, results)) is not None:
            saved, _ = figures.save(figure, folder / FIGURES / "table")
            shown.append(("Scores", inline_svg(saved.read_text(encoding="utf-8"), "table", "Scores"), caption))
    except figures.MissingMatplotlib as error:
        print(f"{error}", file=sys.stderr)
    protocols = paper.experiments[results.experiment].columns
    has_pictures = any(paper.protocols[name].domains == "transfer" for name in protocols)
    for name in description["parts"]:
        path = folder / name / FIGURES / "saliency.svg"
        if has_pictures and path.exists():
            title = f"Saliency, {name}"
            shown.append((title, inline_svg(path.read_text(encoding="utf-8"), f"saliency-{name}", title), SALIENCY))
    hidden = ("parts", "contents", "data", "differences")
    data, differences = description["data"], description["differences"]
    page = environment().get_template("reproduction.html").render(
        title=f"gradhomog: reproduction of `{description['experiment']}`",
        contents=description["contents"],
        table=text_table(paper, results, description),
        figures=shown,
        parts=description["parts"],
        facts={key: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
               for key, value in description.items() if key not in hidden},
        data={name: "; ".join(filter(None, [file, differences.get(name)])) for name, file in data.items()},
    )  # fmt: skip
    write_bytes(folder / REPORT, page.encode())
    return folder / REPORT


def draw(paper: Paper, results: Results) -> Figure | None:
    """Our scores and the paper's by column, one panel each; the axis of errors is logarithmic."""
    if not results.rows:
        return None
    heights = [len(rows) for rows in results.columns.values()]
    with style.figure_style():
        figure, axes = style.make_panels(
            len(heights), 1, 0.5 + 0.24 * sum(heights) + 0.45 * len(heights), height_ratios=heights,
        )  # fmt: skip
        for (name, rows), (panel,) in zip(results.columns.items(), axes, strict=True):
            _draw_panel(panel, rows, paper.spread)
            panel.set_title(name)
            panel.set_xlabel(paper.protocols[rows[0].protocol].score or f"test {metric(rows[0].metric).title}")
    return figure


def _draw_panel(panel: Any, rows: Sequence[Result], spread: str) -> None:
    kind = metric(rows[0].metric)
    for y, row in enumerate(rows):
        values = [kind.factor * value for value in row.seed_scores.values() if math.isfinite(value)]
        panel.plot(values, [y] * len(values), "o", markersize=3, color=style.PALETTE[0])
        _draw_mean(panel, y, style.scale_interval(row.ours, row.metric), "|", style.PALETTE[0])
        if row.published is not None:
            mean, width = (*row.published, math.nan)[:2]
            _draw_mean(panel, y, (mean, width if spread == "half_width" else math.nan), "x", style.PLAIN_COLOR)
    if not kind.higher_is_better:
        panel.set_xscale("log")
    panel.set_yticks(range(len(rows)), [row.row for row in rows])
    panel.invert_yaxis()


def _draw_mean(panel: Any, y: int, interval: tuple[float, float], marker: str, color: str) -> None:
    mean, half_width = interval
    width = 0.0 if math.isnan(half_width) else half_width
    panel.errorbar([mean], [y], xerr=[width], fmt=marker, markersize=8, linewidth=1, color=color)
