"""Write the report of a comparison: `summary.csv`, `figures/` and a self-contained `report.html`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gradhomog.experiments.analysis.summary import Summary, summarize
from gradhomog.experiments.report import figures
from gradhomog.experiments.report.csv_table import write_csv
from gradhomog.experiments.report.html import render_page
from gradhomog.experiments.results import saliency_maps, trajectory
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.records import records as read_records


def write_report(folder: str | Path, expected_runs: int | None = None) -> Summary:
    """Write the report of a comparison to its folder and return the summary; the comparison may be unfinished.

    Without matplotlib the report has no figures, and a message on stderr names the package to install.

    Raises:
        ConfigError: the folder has no records, or they are damaged.
    """
    folder = Path(folder)
    records = read_records(folder)
    summary = summarize(records, expected_runs)
    write_csv(summary, folder / "summary.csv")
    try:
        figures.require_matplotlib()
        saved_figures = _save_figures(folder, records, summary)
    except figures.MissingMatplotlib as error:
        saved_figures = {}
        print(f"{error}", file=sys.stderr)
    (folder / "report.html").write_text(render_page(summary, records, saved_figures), encoding="utf-8")
    return summary


def _save_figures(folder: Path, records: Sequence[Record], summary: Summary) -> dict[str, figures.SavedFigure]:
    """Draw the figures that the records have data for, save them in `figures/`, and return them by name."""
    maps = saliency_maps.collect(folder, records)
    methods = [(row.learner, row.label) for row in summary.rows]
    drawn = {
        "scores": figures.scores(summary),
        "domains": figures.domain_scores(summary),
        "validation": figures.validation(records, summary),
        "conflict": figures.conflict(records),
        "stages": figures.stages(records),
        "weights": figures.weights(records),
        "measured": figures.measurements(records),
        "trajectories": figures.trajectories(trajectory.collect(folder, records)),
        "saliency": figures.saliency(maps),
    }
    remarks = {"saliency": figures.saliency_omissions(maps, methods)}
    return {
        name: figures.SavedFigure(figures.save(figure, folder / "figures" / name)[0], remarks.get(name, ()))
        for name, figure in drawn.items()
        if figure is not None
    }
