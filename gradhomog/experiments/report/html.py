"""The HTML page of a report, made from the templates in `templates/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.report.captions import TITLES, captions, tuning_note
from gradhomog.experiments.report.figures import Picture
from gradhomog.experiments.report.html_table import answer_table, candidate_table, score_table
from gradhomog.experiments.report.narrative import answer_notes, answers, scope
from gradhomog.experiments.report.notes import notes
from gradhomog.experiments.report.run_sections import run_sections
from gradhomog.experiments.report.svg import inline_svg
from gradhomog.experiments.results.events import Record


@dataclass(frozen=True)
class Figure:
    """A figure of the page."""

    name: str
    title: str
    svg: Markup
    caption: str
    remarks: Sequence[str]


def render_page(summary: Summary, records: Sequence[Record], pictures: Mapping[str, Picture]) -> str:
    """The page: answers, table, figures, tuning, runs, configuration and versions. Every text is escaped."""
    environment = Environment(
        loader=PackageLoader("gradhomog.experiments.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    start: Record = next((record for record in reversed(records) if record["event"] == "start"), {})
    about = f" {'on' if summary.problem else 'of'} {', '.join(summary.learners)}" if summary.rows else ""
    return environment.get_template("report.html").render(
        title=f"gradhomog: comparison{about}",
        scope=scope(summary),
        answers=answers(summary),
        answer_table=answer_table(summary),
        answer_notes=answer_notes(summary),
        score_table=score_table(summary) if summary.rows else None,
        notes=notes(summary),
        figures=_figures(summary, pictures),
        candidates=candidate_table(summary) if summary.candidates else None,
        tuning_note=tuning_note(summary) if summary.candidates else "",
        runs=run_sections(records, summary),
        about=_about(summary, start),
        version=(start.get("versions") or {}).get("gradhomog"),
        configuration=tomli_w.dumps(start.get("config") or {}) if start else None,
        versions={str(k): str(v) for part in ("versions", "machine") for k, v in (start.get(part) or {}).items()},
    )


def _figures(summary: Summary, pictures: Mapping[str, Picture]) -> list[Figure]:
    texts = captions(summary)
    return [
        Figure(
            name,
            TITLES[name],
            inline_svg(pictures[name].svg.read_text(encoding="utf-8"), name, TITLES[name]),
            texts[name],
            pictures[name].remarks,
        )
        for name in TITLES
        if name in pictures
    ]


def _about(summary: Summary, start: Record) -> dict[str, str]:
    """What was compared, by name; without what is unknown."""
    config = start.get("config") or {}
    of_problem = {"tasks": ", ".join(map(str, start.get("tasks") or ())), "data": " ".join(summary.notes)}
    of_episodes = {
        "training domains": ", ".join(_names(config, "domains", "train")),
        "test domains": ", ".join(summary.domains),
        "test tasks": f"{summary.tasks}, the same for every run",
    }
    entries = {
        "problem" if summary.problem else "learner": ", ".join(summary.learners),
        "methods": ", ".join(dict.fromkeys(row.label for row in summary.rows)),
        **(of_problem if summary.problem else of_episodes),
        "started": str(start.get("time") or ""),
    }
    return {name: text for name, text in entries.items() if text}


def _names(config: Record, section: str, key: str) -> list[str]:
    inner = config.get(section)
    found = inner.get(key) if isinstance(inner, dict) else None
    return [str(name) for name in found] if isinstance(found, list) else []
