"""Write the report of a comparison: `summary.csv`, `figures/` and a self-contained `report.html`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gradhomog.experiments.analysis.summary import Summary, summarize
from gradhomog.experiments.report import figures
from gradhomog.experiments.report.html import render_page
from gradhomog.experiments.report.tables import number_table
from gradhomog.experiments.results import saliency_maps, trajectory
from gradhomog.experiments.results.atomic_files import write_bytes
from gradhomog.experiments.results.checksums import file_digest, write_json
from gradhomog.experiments.results.comparison_dir import MANIFEST, PLAN, RUN_FILE
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.records import records as read_records

SUMMARY, REPORT = "summary.csv", "report.html"


def write_report(folder: str | Path) -> Summary:
    """Write the report of a comparison to its folder and return the summary; the comparison may be unfinished.

    `manifest.json`, written last, has the SHA-256 of the report, of `plan.json` and of `run.toml`.

    Without matplotlib the report has no figures, and a message on stderr names the package to install.

    Raises:
        ConfigError: the folder has no records, or they are damaged.
    """
    folder = Path(folder)
    records = read_records(folder)
    summary = summarize(records)
    write_bytes(folder / SUMMARY, number_table(summary).csv().encode())
    try:
        figures.require_matplotlib()
        saved_figures = _save_figures(folder, records, summary)
    except figures.MissingMatplotlib as error:
        saved_figures = {}
        print(f"{error}", file=sys.stderr)
    write_bytes(folder / REPORT, render_page(summary, records, saved_figures).encode())
    written = [folder / RUN_FILE, folder / PLAN, folder / SUMMARY, folder / REPORT]
    written += [path for figure in saved_figures.values() for path in (figure.svg, figure.svg.with_suffix(".png"))]
    digests = {path.relative_to(folder).as_posix(): file_digest(path) for path in written if path.exists()}
    write_json(folder / MANIFEST, {"files": digests})
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
        "trajectories": figures.trajectories(trajectory.collect(folder, records)),
        "saliency": figures.saliency(maps),
    }
    remarks = {"saliency": figures.saliency_omissions(maps, methods)}
    return {
        name: figures.SavedFigure(figures.save(figure, folder / "figures" / name)[0], remarks.get(name, ()))
        for name, figure in drawn.items()
        if figure is not None
    }
