"""Sections of the HTML report about single runs: configuration, curves, result, and folder."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.analysis.statistics import mean_interval
from gradhomog.experiments.analysis.summary import Summary
from gradhomog.experiments.report import figures
from gradhomog.experiments.report.formatting import interval_text, number_text
from gradhomog.experiments.report.svg import inline_svg
from gradhomog.experiments.results.events import Record, numbers
from gradhomog.experiments.results.records import by_run_and_label
from gradhomog.table import NOTHING


@dataclass(frozen=True)
class RunSection:
    """The section of one run.

    Attributes:
        title: method and seed.
        score: its score, or "failed".
        entries: settings and results by name.
        command: the command that trains this run alone, with the run file of the comparison; empty if unknown.
        curves: training loss and validation score over training steps, as SVG.
        error: the error of a failed run.
    """

    title: str
    score: str
    entries: dict[str, str]
    command: str
    curves: Markup
    error: str = ""


def run_sections(records: Sequence[Record], summary: Summary) -> list[RunSection]:
    """Sections of runs with a result in the order of the table and by seed, then of candidates, then of failed runs."""
    steps, validations = by_run_and_label(records, "step"), by_run_and_label(records, "validation")
    order = {(row.learner, row.label): place for place, row in enumerate(summary.rows)}
    results = [record for record in records if record["event"] == "result"]
    table = [record for record in results if record["role"] == "compare"]
    table.sort(key=lambda record: (order[record["learner"], record["label"]], record["seed"]))
    done = {record["run"] for record in table}
    others = [record for record in results if record["role"] != "compare" and record["run"] not in done]
    sections = []
    for record in [*table, *others]:
        key = record["run"], record["label"]
        curves = _curves(record["run"], steps.get(key, []), validations.get(key, []), summary)
        sections.append(_finished_section(record, summary, curves))
    failed = {record["run"]: record for record in records if record["event"] == "failed"}
    for run, message in summary.failures.items():
        key = run, failed[run]["label"]
        curves = _curves(run, steps.get(key, []), validations.get(key, []), summary)
        sections.append(_failed_section(failed[run], message, curves, summary))
    return sections


def _finished_section(record: Record, summary: Summary, curves: Markup) -> RunSection:
    kind = metric(summary.metric)
    scores = mean_interval(numbers(record["scores"]))
    score = interval_text(scores, summary.metric, mean_only=bool(summary.problem)) + kind.unit
    validation = numbers([record.get("validation")])[0]
    entries = {
        "learner": record["learner"],
        "homogenizers": record["homogenizers"],
        "seed": str(record["seed"]),
        summary.score_name("test"): score,
        "validation": NOTHING if math.isnan(validation) else number_text(validation, summary.metric) + kind.unit,
        "tested network": _step(record.get("best_step")),
        "training steps": str(record.get("steps", NOTHING)),
        "training time": _seconds(record.get("seconds")),
        "step time": _seconds(record.get("step_seconds")),
        "folder": f"runs/{record['run']}",
    }
    if not summary.held_out:
        del entries["validation"]
    candidate = "" if record["role"] == "compare" else f", candidate {record['homogenizers']}"
    return RunSection(
        _title(record, summary) + candidate,
        number_text(scores.mean, summary.metric) + kind.unit,
        entries,
        _command(record["learner"], record["homogenizers"], record["seed"], summary),
        curves,
    )


def _failed_section(record: Record, message: str, curves: Markup, summary: Summary) -> RunSection:
    entries = {"folder": f"runs/{record['run']}"}
    return RunSection(_title(record, summary), "failed", entries, "", curves, message)


def _title(record: Record, summary: Summary) -> str:
    label = str(record.get("label", record["run"]))
    name = f"{record['learner']}, {label}" if len(summary.learners) > 1 and "learner" in record else label
    return f"{name}, seed {record['seed']}" if "seed" in record else name


def _command(learner: str, homogenizers: str, seed: int, summary: Summary) -> str:
    """The command that trains one run. Its settings are JSON strings and lists, which are also TOML values."""
    settings = [] if summary.problem else [f"learner={json.dumps(learner, ensure_ascii=False)}"]
    settings += [f"homogenizers={json.dumps([homogenizers], ensure_ascii=False)}", f"seeds=[{seed}]"]
    return shlex.join(["gradhomog", "train", "run.toml", *(word for text in settings for word in ("--set", text))])


def _curves(run: str, steps: Sequence[Record], validations: Sequence[Record], summary: Summary) -> Markup:
    """Training loss and validation score as SVG; empty without data or matplotlib."""
    try:
        figure = figures.one_run(steps, validations, summary)
    except figures.MissingMatplotlib:  # `write_report` names the package to install
        return Markup("")
    return Markup("") if figure is None else inline_svg(figures.svg_text(figure), run, f"Curves of {run}")


def _step(step: int | None) -> str:
    return NOTHING if step is None else f"step {step}"


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds:.3g} s"
