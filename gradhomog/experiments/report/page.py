"""Write the report of a comparison: `summary.csv`, `figures/` and a self-contained `report.html`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gradhomog.experiments.analysis.summary import Summary, summarize
from gradhomog.experiments.report.figures import curves, saliency, scores, style
from gradhomog.experiments.report.findings import baseline_notes, findings, scope
from gradhomog.experiments.report.tables import baseline_table, candidate_table, run_table, score_table, summary_csv
from gradhomog.experiments.results.artifacts import SaliencyMaps, Trajectory, collect
from gradhomog.experiments.results.atomic_files import write_bytes
from gradhomog.experiments.results.checksums import file_digest, write_json
from gradhomog.experiments.results.comparison_dir import MANIFEST, PLAN, RUN_FILE, Plan, lock
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.records import records as read_records
from gradhomog.experiments.score_metrics import metric
from gradhomog.terminal import escape_controls

TITLES = {
    "scores": "Scores and differences",
    "validation": "Validation curves",
    "conflict": "Agreement of task gradients",
    "stages": "Effect of each homogenizer on the gradients",
    "weights": "Task weights",
    "trajectories": "Trajectories",
    "saliency": "Saliency",
}
"""Titles by figure name, in the order of the page."""


# Colours of `figures.style` that are replaced by the colour scheme of the page: background, text and axes, grid, guide
# lines.
_THEME = {
    "#ffffff": "var(--ground)",
    "#000000": "var(--ink)",
    "#222222": "var(--ink)",
    "#e6e6e6": "var(--line)",
    "#888888": "var(--soft)",
}


def inline_svg(path: Path, prefix: str, title: str) -> Markup:
    """An SVG file as an HTML element, with colours of the page's theme and prefixed identifiers.

    The prefix makes identifiers unique on a page with several figures.
    """
    text = path.read_text(encoding="utf-8")
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)  # it refers to external resources
    # Equal images have equal identifiers, which would be duplicates; nothing refers to them.
    svg = re.sub(r'(<image\b[^>]*?) id="[^"]*"', r"\1", svg)
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda match: _THEME.get(match[0], match[0]), svg)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))


def render_page(summary: Summary, records: Sequence[Record], saved_figures: Mapping[str, Path]) -> str:
    """The page: findings, table, figures, tuning, runs, configuration and versions. All texts are escaped."""
    start = records[0]
    shown = [
        (name, title, inline_svg(saved_figures[name], name, title))
        for name, title in TITLES.items()
        if name in saved_figures
    ]
    units = {row.unit for row in summary.rows} - {"one"}
    over = "seeds, or over test tasks for a single seed"
    if summary.problem or len(units) == 1:
        over = {"seeds": "seeds", "tasks": "test tasks"}[units.pop()] if units else "seeds (here a single seed)"
    subject = f" {'on' if summary.problem else 'of'} {', '.join(summary.learners)}" if summary.rows else ""
    template = environment().get_template("report.html")
    return template.render(
        title=f"gradhomog: comparison{subject}",
        scope=scope(summary),
        findings=findings(summary),
        baseline_table=baseline_table(summary),
        baseline_notes=baseline_notes(summary),
        score_table=score_table(summary),
        figures=shown,
        over=over,
        several=any(len(row.seeds) > 1 for row in summary.rows),
        candidates=candidate_table(summary) if summary.candidates else None,
        summary=summary,
        metric=metric(summary.metric),
        runs=run_table(summary, records),
        facts=_facts(summary, start),
        configuration=tomli_w.dumps(start["config"]),
        versions={name: str(text) for name, text in {**start["versions"], **start["machine"]}.items()},
    )


def environment() -> Environment:
    """The template environment of all pages: every text is escaped, its control characters too."""
    return Environment(
        loader=PackageLoader("gradhomog.experiments.report"),
        autoescape=True,
        finalize=lambda value: type(value)(escape_controls(value, keep="\n\t")) if isinstance(value, str) else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _facts(summary: Summary, start: Record) -> dict[str, str]:
    """Facts about the comparison (learners, methods, domains) by name; unknown facts are omitted."""
    if summary.problem:
        entries = {"tasks": ", ".join(start.get("tasks", ())), "data": " ".join(summary.notes)}
    else:
        entries = {
            "training domains": ", ".join(start["config"].get("domains", {}).get("train", ())),
            "test domains": ", ".join(summary.domains),
            "test tasks": f"{summary.tasks}, the same for all runs",
        }
    entries = {
        "problem" if summary.problem else "learner": ", ".join(summary.learners),
        "methods": ", ".join(dict.fromkeys(row.label for row in summary.rows)),
        **entries,
        "started": start["time"],
    }
    return {name: text for name, text in entries.items() if text}


SUMMARY, REPORT, FIGURES = "summary.csv", "report.html", "figures"


def write_report(folder: str | Path) -> Summary:
    """Write the report of a comparison to its folder and return the summary; the comparison may be unfinished.

    `manifest.json`, written last, has the SHA-256 of the report, of `plan.json`, of `run.toml`, of the results, and of
    the events of failed runs.

    Without matplotlib the report has no figures, and a message on stderr names the package to install.

    Raises:
        ConfigError: the folder has no records, or they are damaged.
    """
    folder = Path(folder)
    records = read_records(folder)
    summary = summarize(records)
    with lock(folder):
        write_bytes(folder / SUMMARY, summary_csv(summary).encode())
        saved_figures = _save_figures(folder, records, summary)
        write_bytes(folder / REPORT, render_page(summary, records, saved_figures).encode())
        written = [folder / RUN_FILE, folder / PLAN, folder / SUMMARY, folder / REPORT]
        written += Plan.read(folder).final_files(folder)
        written += [path for figure in saved_figures.values() for path in (figure, figure.with_suffix(".png"))]
        digests = {path.relative_to(folder).as_posix(): file_digest(path) for path in written if path.exists()}
        write_json(folder / MANIFEST, {"files": digests})
    return summary


def _save_figures(folder: Path, records: Sequence[Record], summary: Summary) -> dict[str, Path]:
    """Draw the figures that the records have data for, save them in `figures/`, and return the SVG files by name."""
    return style.save_figures(
        lambda: {
            "scores": scores.scores(summary),
            "validation": curves.validation(records, summary),
            "conflict": curves.conflict(records),
            "stages": curves.stages(records),
            "weights": curves.weights(records),
            "trajectories": curves.trajectories(collect(folder, records, Trajectory)),
            "saliency": saliency.saliency(collect(folder, records, SaliencyMaps)),
        },
        folder / FIGURES,
    )
