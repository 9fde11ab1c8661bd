"""The report of a comparison: `summary.csv`, `figures/` and one `report.html` that needs nothing beside it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.summary import Summary, summarize
from gradhomog.experiments.report import figures, tables
from gradhomog.experiments.report.html import STYLE, definitions, inline_svg, table
from gradhomog.experiments.report.narrative import captions, reading
from gradhomog.experiments.report.tables import write_csv
from gradhomog.experiments.results import saliency_maps, trajectory
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.results.records import records as read_records


def write_report(folder: str | Path, expected_runs: int | None = None) -> Summary:
    """Read `results.jsonl` of a folder, finished or not, write the report beside it, and return its table.

    Raises:
        ConfigError: there is no log, or it is damaged.

    Without matplotlib the report has no figures, and says what to install.
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
    (folder / "report.html").write_text(_page(summary, records, pictures), encoding="utf-8")
    return summary


def _pictures(folder: Path, records: Sequence[Record], summary: Summary) -> dict[str, Path]:
    """Draw what there is to draw into `figures/`; the SVG of each figure by its name."""
    drawn = {
        "scores": figures.scores(summary),
        "domains": figures.domain_scores(summary),
        "conflict": figures.conflict(records),
        "stages": figures.stages(records),
        "weights": figures.weights(records),
        "measured": figures.measured(records),
        "validation": figures.validation(records, summary),
        "looks": figures.looks(saliency_maps.collect(folder, records)),
        "trajectories": figures.trajectories(trajectory.collect(folder, records)),
    }
    return {
        name: figures.save(figure, folder / "figures" / name)[0] for name, figure in drawn.items() if figure is not None
    }


def _page(summary: Summary, records: Sequence[Record], pictures: dict[str, Path]) -> str:
    start: Record = next((record for record in reversed(records) if record["event"] == "start"), {})
    about = f" {'on' if summary.problem else 'of'} {', '.join(summary.learners)}" if summary.rows else ""
    title = f"gradhomog: comparison{about}"
    parts = [f"<h1>{escape(title)}</h1>", _compared(summary, start)]
    if summary.rows:
        parts.append(table(tables.header(summary), [tables.cells(summary, row) for row in summary.rows]))
    parts += [f'<p class="note">{escape(line)}</p>' for line in tables.notes(summary)]
    parts += ["<h2>Reading</h2>", f"<p>{escape(reading(summary))}</p>"]
    if pictures:
        parts.append("<h2>Figures</h2>")
    said = captions(summary)
    for name, path in pictures.items():
        svg = inline_svg(path.read_text(encoding="utf-8"), name)
        parts.append(f"<figure>{svg}<figcaption>{escape(said[name])}</figcaption></figure>")
    if summary.candidates:
        parts += ["<h2>Tuning</h2>", _candidates(summary)]
    parts += _origin(start)
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _compared(summary: Summary, start: Record) -> str:
    config = start.get("config") or {}
    runs = f"{summary.finished}" if summary.expected is None else f"{summary.finished} of {summary.expected}"
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
        "runs finished": runs,
        "started": str(start.get("time") or ""),
    }
    return definitions({name: text for name, text in entries.items() if text})


def _names(config: Record, section: str, key: str) -> list[str]:
    inner = config.get(section)
    found = inner.get(key) if isinstance(inner, dict) else None
    return [str(name) for name in found] if isinstance(found, list) else []


def _candidates(summary: Summary) -> str:
    rows = [
        [
            *([candidate.learner] if len(summary.learners) > 1 else []),
            candidate.label,
            candidate.homogenizers,
            tables.number_text(candidate.validation, summary.metric),
            tables.NOTHING if candidate.best_step is None else str(candidate.best_step),
            "chosen" if candidate.chosen else "",
        ]
        for candidate in summary.candidates
    ]
    kind = metric(summary.metric)
    score = f"validation {kind.title}" if summary.held_out else kind.title
    several = ["learner"] if len(summary.learners) > 1 else []
    seed = summary.candidates[0].seed
    note = (
        f"Each candidate was trained with seed {seed}; the one with the best validation score was trained with all "
        "seeds. The choice does not look at the test."
        if summary.held_out
        else f"The best candidate by the {kind.words} that the table shows is its method's row: there is nothing else "
        "to choose by, so a row that was tuned is the best of several tries."
    )
    return table([*several, "method", "candidate", score, "at step", ""], rows) + f'<p class="note">{escape(note)}</p>'


def _origin(start: Record) -> list[str]:
    """What is needed to run it again."""
    if not start:
        return []
    import tomli_w  # here, so that a report without a start record needs nothing but the standard library

    config = start.get("config") or {}
    version = (start.get("versions") or {}).get("gradhomog")
    install = f"pip install 'gradhomog[plot]=={version}'\n" if version else ""
    return [
        "<h2>How to reproduce</h2>",
        "<p>Save the configuration below as <code>run.toml</code>, or take that file from beside this report.</p>",
        f"<pre>{escape(install)}gradhomog compare run.toml</pre>",
        "<h2>Configuration</h2>",
        f"<pre>{escape(tomli_w.dumps(config))}</pre>",
        "<h2>Versions and machine</h2>",
        definitions({str(k): str(v) for part in ("versions", "machine") for k, v in (start.get(part) or {}).items()}),
    ]
