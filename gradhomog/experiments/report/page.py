"""The report of a comparison: `summary.csv`, `figures/` and one self-contained `report.html`."""

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
    """Write the report of a folder, finished or not, into it, and return its table.

    Without matplotlib the report has no figures, and a message on stderr says what to install.

    Raises:
        ConfigError: there are no records in the folder, or they are damaged.
    """
    folder = Path(folder)
    records = read_records(folder)
    summary = summarize(records, expected_runs)
    write_csv(summary, folder / "summary.csv")
    try:
        figures.require_matplotlib()
        pictures = _pictures(folder, records, summary)
    except figures.MissingMatplotlib as error:
        pictures = {}
        print(f"{error}", file=sys.stderr)
    (folder / "report.html").write_text(render_page(summary, records, pictures), encoding="utf-8")
    return summary


def _pictures(folder: Path, records: Sequence[Record], summary: Summary) -> dict[str, figures.Picture]:
    """Draw the figures that the records allow into `figures/`, and return them by name."""
    maps = saliency_maps.collect(folder, records)
    methods = [(row.learner, row.label) for row in summary.rows]
    drawn = {
        "scores": figures.scores(summary),
        "domains": figures.domain_scores(summary),
        "validation": figures.validation(records, summary),
        "conflict": figures.conflict(records),
        "stages": figures.stages(records),
        "weights": figures.weights(records),
        "measured": figures.measured(records),
        "trajectories": figures.trajectories(trajectory.collect(folder, records)),
        "saliency": figures.saliency(maps),
    }
    remarks = {"saliency": figures.saliency_omissions(maps, methods)}
    return {
        name: figures.Picture(figures.save(figure, folder / "figures" / name)[0], remarks.get(name, ()))
        for name, figure in drawn.items()
        if figure is not None
    }
