"""Render the HTML page of a report from the templates in `templates/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.report.captions import TITLES, captions, tuning_note
from gradhomog.experiments.report.figures import SavedFigure
from gradhomog.experiments.report.findings import baseline_notes, findings, scope
from gradhomog.experiments.report.svg import inline_svg
from gradhomog.experiments.report.tables import baseline_table, candidate_table, run_table, score_table
from gradhomog.experiments.results.events import Record


@dataclass(frozen=True)
class Figure:
    """A figure of the page."""

    name: str
    title: str
    svg: Markup
    caption: str
    remarks: Sequence[str]


def render_page(summary: Summary, records: Sequence[Record], saved_figures: Mapping[str, SavedFigure]) -> str:
    """The page: findings, table, figures, tuning, runs, configuration and versions. All texts are escaped."""
    start: Record = next((record for record in reversed(records) if record["event"] == "start"), {})
    subject = f" {'on' if summary.problem else 'of'} {', '.join(summary.learners)}" if summary.rows else ""
    return (
        environment()
        .get_template("report.html")
        .render(
            title=f"gradhomog: comparison{subject}",
            scope=scope(summary),
            findings=findings(summary),
            baseline_table=baseline_table(summary),
            baseline_notes=baseline_notes(summary),
            score_table=score_table(summary),
            figures=_figures(summary, saved_figures),
            candidates=candidate_table(summary) if summary.candidates else None,
            tuning_note=tuning_note(summary) if summary.candidates else "",
            runs=run_table(summary, records),
            failures=summary.failures,
            facts=_facts(summary, start),
            version=(start.get("versions") or {}).get("gradhomog"),
            configuration=tomli_w.dumps(start.get("config") or {}) if start else None,
            versions={str(k): str(v) for part in ("versions", "machine") for k, v in (start.get(part) or {}).items()},
        )
    )


def environment() -> Environment:
    """The template environment of all pages: every text is escaped."""
    return Environment(
        loader=PackageLoader("gradhomog.experiments.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _figures(summary: Summary, saved_figures: Mapping[str, SavedFigure]) -> list[Figure]:
    texts = captions(summary)
    return [
        Figure(
            name,
            TITLES[name],
            inline_svg(saved_figures[name].svg.read_text(encoding="utf-8"), name, TITLES[name]),
            texts[name],
            saved_figures[name].remarks,
        )
        for name in TITLES
        if name in saved_figures
    ]


def _facts(summary: Summary, start: Record) -> dict[str, str]:
    """Facts about the comparison (learners, methods, domains) by name; unknown facts are omitted."""
    config = start.get("config") or {}
    problem_entries = {"tasks": ", ".join(map(str, start.get("tasks") or ())), "data": " ".join(summary.notes)}
    episode_entries = {
        "training domains": ", ".join(_config_list(config, "domains", "train")),
        "test domains": ", ".join(summary.domains),
        "test tasks": f"{summary.tasks}, the same for all runs",
    }
    entries = {
        "problem" if summary.problem else "learner": ", ".join(summary.learners),
        "methods": ", ".join(dict.fromkeys(row.label for row in summary.rows)),
        **(problem_entries if summary.problem else episode_entries),
        "started": str(start.get("time") or ""),
    }
    return {name: text for name, text in entries.items() if text}


def _config_list(config: Record, section: str, key: str) -> list[str]:
    """The list at `section.key` of a configuration; empty if it is missing or not a list."""
    table = config.get(section)
    values = table.get(key) if isinstance(table, dict) else None
    return [str(value) for value in values] if isinstance(values, list) else []
