"""The report of an experiment: its table with notes, its figure, and a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradhomog.experiments.report.figures import style
from gradhomog.experiments.report.figures.scores import DrawnRow, draw_rows
from gradhomog.experiments.report.page import FIGURES, REPORT, environment, inline_svg
from gradhomog.experiments.report.tables import interval_cell, number_cell, number_text, seeds_text
from gradhomog.experiments.reproduce.paper_schema import Paper
from gradhomog.experiments.reproduce.paper_scores import PaperScore, PaperScores
from gradhomog.experiments.results.atomic_files import write_bytes
from gradhomog.experiments.score_metrics import metric
from gradhomog.table import NOTHING, Cell, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
OF_THE_PAPER = ("published", "excess", "ratio")
"""Statistics of experiments with published numbers."""
BY_SCORE = (
    "Δm: drop against single-task networks, mean over the scores, lower is better, as in the papers; reports of "
    "comparisons have the opposite sign; nan if a score of the single-task networks is 0. Mean rank: among the methods "
    "of this table without single-task networks; it cannot be compared with that of another table."
)


def text_table(paper: Paper, results: PaperScores, description: Mapping[str, Any]) -> Table:
    """The table of the results, with notes about its numbers."""
    compared = paper.scales[description["scale"]].compared
    hidden = () if paper.published.get(results.experiment) else OF_THE_PAPER
    shown = {name: title for name, title in paper.statistics.items() if name not in hidden}
    rows: list[list[Cell | str]] = []
    for result in results.rows:
        cells = statistics(result, paper.spread, compared)
        rows.append([result.column, result.row, *(cells[name] for name in shown)])
    header = ["column", "row", *shown.values()]
    return Table(header, rows, notes(paper, results, description), sticky=1)


def statistics(result: PaperScore, spread: str, compared: bool) -> dict[str, Cell]:
    """The cells of `paper_schema.STATISTICS`; the ratio to the paper's number is omitted if not `compared`."""
    kind = result.metric
    published = [f"{value:.2f}" if metric(kind).percent else f"{value:.4g}" for value in result.published or ()]
    published[1:] = [f"± {text}" if spread == "half_width" else f"({text})" for text in published[1:]]
    difference = result.to_plain
    mark = " *" if difference and abs(difference.mean) > difference.half_width else ""
    excess = number_cell(result.excess, partial(number_text, kind=kind, signed=True))
    unknown = " †" if published and result.excess is None else ""
    return {
        "score": interval_cell(result.ours, kind),
        "episodes": number_cell(result.half_width_episodes, partial(number_text, kind=kind)),
        "median": number_cell(result.median, partial(number_text, kind=kind)),
        "difference": interval_cell(difference, kind, signed=True, mark=mark),
        "seeds_needed": number_cell(result.seeds_needed, seeds_text),
        "published": Cell(" ".join(published) or NOTHING, result.published[0] if result.published else None),
        "excess": Cell(excess.text + unknown, excess.value),
        "ratio": number_cell(result.ratio if compared else None, "{:.3g}".format),
        "milliseconds": number_cell(result.step_seconds, lambda seconds: f"{1000 * seconds:.2f}"),
        "seeds": Cell(str(len(result.seed_scores)), len(result.seed_scores)),
    }


def notes(paper: Paper, results: PaperScores, description: Mapping[str, Any]) -> list[str]:
    """Sentences about scale, data, intervals, sources and tuned rows."""
    several = any(len(result.seed_scores) > 1 for result in results.rows)
    by_score = paper.experiments[results.experiment].by_score
    columns = _names_in_notes(results, by_score)
    protocols = {columns[result.column]: paper.protocols[result.protocol] for result in results.rows}
    scores = "".join(f"{column}: {one.score}; " for column, one in protocols.items() if one.score)
    sources = dict.fromkeys(one.source for one in protocols.values() if one.source)
    chosen = dict.fromkeys(f"{columns[one.column]}, {one.row}: {one.chosen}" for one in results.rows if one.chosen)
    sampled = "episodes" in paper.statistics
    sample = "test episodes, because of one seed" if sampled and not several else "seeds (Student t)"
    words = {
        "episodes": results.test_episodes or "the", "unit": "seed" if several or not sampled else "test episode",
        "difference": paper.statistics.get("difference"),
    }  # fmt: skip
    overrides, data, differences = (description[key] for key in ("overrides", "data", "differences"))
    changed = f"; changed by {', '.join(overrides)}" if overrides else ""
    lists = {
        "not complete": [f"{name} ({data[name]}: {text})" for name, text in differences.items()],
        "missing": [name for name in paper.benchmarks if name not in data],
    }
    absent = "".join(f"; {title}: {', '.join(names)}" for title, names in lists.items() if names)
    present = f"{len(data) - len(differences)} of {len(paper.benchmarks)} benchmarks present and complete{absent}"
    return [
        f"Scale {description['scale']}: {description['scale_summary']}{changed}.",
        *([f"Data: {present}."] if paper.benchmarks else []),
        f"{paper.statistics.get('score', 'score').removesuffix(' %')}: {scores}mean ± 95 % interval over {sample}.",
        *(text.format(**words) for name, text in EXPLANATIONS.items() if name in paper.statistics),
        *[BY_SCORE] * by_score,
        *paper.notes,
        *([f"paper: {'; '.join(sources)}."] if sources else []),
        *([INCOMPLETE] if any(one.published and not one.is_comparable for one in results.rows) else []),
        *([f"Chosen: {'; '.join(chosen)}."] if chosen and not sampled else []),
        *([f"Missing: {'; '.join(results.missing)}."] if results.missing else []),
    ]


def _names_in_notes(results: PaperScores, by_score: bool) -> dict[str, str]:
    """The name of each column in sentences; with `by_score`, that of the protocol: one comparison has all of them."""
    return {result.column: result.protocol if by_score else result.column for result in results.rows}


def write_page(paper: Paper, results: PaperScores, description: Mapping[str, Any], folder: Path) -> Path:
    """Write `report.html` and, if matplotlib is installed, `figures/table.svg` and `.png`; return the page's path."""
    shown: dict[str, Any] = {}  # by title
    if path := style.save_figures(lambda: {"table": draw(paper, results)}, folder / FIGURES).get("table"):
        shown["Scores"] = inline_svg(path, "table", "Scores")
    protocols = paper.experiments[results.experiment].columns
    has_pictures = any(paper.protocols[name].domains == "transfer" for name in protocols)
    for name in description["comparisons"]:
        path = folder / name / FIGURES / "saliency.svg"
        if has_pictures and path.exists():
            shown[f"Saliency, {name}"] = inline_svg(path, f"saliency-{name}", f"Saliency, {name}")
    hidden = ("comparisons", "contents", "data", "differences", "domains")
    data, differences = description["data"], description["differences"]
    page = environment().get_template("reproduction.html").render(
        title=f"gradhomog: reproduction of `{description['experiment']}`",
        description=description,
        table=text_table(paper, results, description),
        figures=shown,
        caption=paper.caption,
        facts={key: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
               for key, value in description.items() if key not in hidden},
        data={name: "; ".join(filter(None, [file, differences.get(name)])) for name, file in data.items()},
    )  # fmt: skip
    write_bytes(folder / REPORT, page.encode())
    return folder / REPORT


def draw(paper: Paper, results: PaperScores) -> Figure | None:
    """Our scores and the paper's by column, one panel each; the axis of errors is logarithmic."""
    if not results.rows:
        return None
    columns: dict[str, list[PaperScore]] = {}
    for row in results.rows:
        columns.setdefault(row.column, []).append(row)
    heights = [len(rows) for rows in columns.values()]
    with style.figure_style():
        height = 0.5 + 0.24 * sum(heights) + 0.45 * len(heights)
        figure, axes = style.make_panels(len(heights), 1, height, height_ratios=heights)
        colors = style.colors([row.row for row in results.rows])
        for (name, rows), (panel,) in zip(columns.items(), axes, strict=True):
            drawn = [DrawnRow(row.row, row.ours, list(row.seed_scores.values())) for row in rows]
            draw_rows(panel, drawn, rows[0].metric, colors)
            _draw_published(panel, rows, with_spread=paper.spread == "half_width")
            kind = metric(rows[0].metric)
            if kind.ratios and not kind.higher_is_better:
                panel.set_xscale("log")
                panel.xaxis.set_major_formatter("{x:g}")  # by default, powers in TeX, which figures do not typeset
            panel.set_title(name)
            words = "" if paper.experiments[results.experiment].by_score else paper.protocols[rows[0].protocol].score
            panel.set_xlabel(words or f"test {kind.title}")
    return figure


def _draw_published(panel: Axes, rows: Sequence[PaperScore], with_spread: bool) -> None:
    for y, row in enumerate(rows):
        if row.published is not None:
            mean, *spread = row.published
            width = spread if with_spread and spread else None
            panel.errorbar([mean], [y], xerr=width, fmt="x", markersize=8, linewidth=1, color=style.PLAIN_COLOR)
