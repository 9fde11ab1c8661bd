"""Compute the comparisons of an experiment, one folder each, and collect them into one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import gradhomog
from gradhomog.errors import ConfigError, GradhomogError
from gradhomog.experiments.execution import plan
from gradhomog.experiments.execution.comparison import compare, make_plan
from gradhomog.experiments.execution.monitor import Progress
from gradhomog.experiments.reproduce.data_sources import find_differences
from gradhomog.experiments.reproduce.experiments import CONFLICT, EXPERIMENTS, Part, parts
from gradhomog.experiments.reproduce.page import FIGURES, REPORT
from gradhomog.experiments.reproduce.report import write_page
from gradhomog.experiments.reproduce.scales import SCALES
from gradhomog.experiments.reproduce.settings import Settings
from gradhomog.experiments.reproduce.table import Table, collect
from gradhomog.experiments.results import atomic_files
from gradhomog.experiments.results.comparison_dir import PLAN, Plan, run_dir
from gradhomog.experiments.results.plan import decided_runs

T = TypeVar("T")

DESCRIPTION = "reproduce.json"
TEXTS = ("version", "contents", "scale_summary", "differences")
"""Entries of the description that may differ when an experiment is resumed."""


@dataclass
class Reproduction:
    """The outcome of an experiment.

    Attributes:
        description: settings and data, the content of `reproduce.json`.
        failures: error messages by comparison and run, or by comparison.
    """

    folder: Path
    table: Table
    description: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def reproduce(
    name: str,
    settings: Settings,
    out: Path,
    *,
    resume: bool = False,
    progress: Progress = lambda record: None,
    jobs: int = 1,
    executor: str = "local",
) -> Reproduction:
    """Compute every comparison of an experiment that has no result, write the report, and return the table of all.

    `out/PART` is the folder of a comparison, with its own report; see `compare`. `out/report.html` is written after
    each comparison. If a comparison fails, the others are still computed. Results do not depend on `jobs` and
    `executor`.

    Args:
        name: a key of `EXPERIMENTS`.
        out: the output folder.
        resume: continue in an existing folder; it must have the same settings, and data of the same content.
        progress: as for `compare`; also called with the record `part` before each comparison.

    Raises:
        ConfigError: names, data or folder are invalid. KeyboardInterrupt: after all runs have written checkpoints.
    """
    planned = parts(name, settings)

    def report(description: dict[str, Any]) -> Table:
        complete = description["data"].keys() - description["differences"].keys()
        table = collect(name, EXPERIMENTS[name].published, planned, out, complete)
        write_page(table, description, out)
        return table

    outcome = compute_parts(
        planned, describe(name, settings), report, out, resume=resume, progress=progress, jobs=jobs, executor=executor
    )
    return Reproduction(out, outcome.table, outcome.description, outcome.failures)


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The table of an experiment, its description, and error messages by comparison and run, or by comparison."""

    table: T
    description: dict[str, Any]
    failures: dict[str, str]


def compute_parts(
    planned: Sequence[Part],
    content: dict[str, Any],
    report: Callable[[dict[str, Any]], T],
    out: Path,
    *,
    resume: bool,
    progress: Progress,
    jobs: int,
    executor: str,
) -> Outcome[T]:
    """Compute the comparisons of any experiment that have no result, each in a folder of `out`.

    Args:
        planned: the comparisons.
        content: the description of the experiment, written to `out`; a folder with another one raises.
        report: called with the description after each comparison; writes the report, and returns the table of all
            results so far.
        out, resume, progress, jobs, executor: as in `reproduce`.

    Raises:
        ConfigError, KeyboardInterrupt: as in `reproduce`.
    """
    # Before hours of training: learners, pipelines, networks and data of all parts.
    plans = {part.name: make_plan(part.config) for part in planned}
    description = _open_folder(out, content, planned, resume)
    for name, new in plans.items():
        if (out / name / PLAN).exists():
            new.read_same(out / name)
    failures: dict[str, str] = {}
    for index, part in enumerate(planned):
        progress(
            {"event": "part", "name": part.name, "index": index, "of": len(planned), "titles": _candidate_titles(part)}
        )
        folder = out / part.name
        if _is_finished(plans[part.name], folder):
            continue
        exists = (folder / PLAN).exists()
        try:
            outcome = compare(part.config, folder, exists, progress, jobs=jobs, executor=executor)
            failures |= {f"{part.name}: {run}": error for run, error in outcome.failures.items()}
        except GradhomogError as error:  # for example, a dry run fails: the other parts are still computed
            failures[part.name] = str(error)
        if index < len(planned) - 1:  # a page of the comparisons so far; that of all follows
            report(description)
    return Outcome(report(description), description, failures)


def _candidate_titles(part: Part) -> dict[tuple[str, str], str]:
    """Titles of the rows by learner and pipeline; candidates of a tuned row are numbered."""
    found: dict[tuple[str, str], str] = {}
    for method, row in zip(plan.methods(part.config), part.rows, strict=True):
        for index, text in enumerate(method.candidates):
            found.setdefault((method.learner, text), f"{row.title} {index + 1}" if method.tuned else row.title)
    return found


def _is_finished(planned: Plan, folder: Path) -> bool:
    """True if the folder has the report and every run of this comparison, so that `compare` would change nothing."""
    if not (folder / REPORT).exists() or not (folder / PLAN).exists():
        return False
    results = {run.id: result for run in planned.runs if (result := run_dir(folder, run).result()) is not None}
    return all(run.id in results for run in decided_runs(planned.methods, planned.seeds, results, ()))


def describe(name: str, settings: Settings) -> dict[str, Any]:
    """The settings of an experiment as JSON: scale, data, and the user's choices."""
    return {
        "experiment": name,
        "contents": EXPERIMENTS[name].summary if name in EXPERIMENTS else CONFLICT,
        "scale": settings.scale,
        "scale_summary": SCALES[settings.scale].summary,
        "data": {name: Path(text).name for name, text in settings.domains.items()},  # the folder may be moved
        "differences": find_differences(settings.domains),
        "learners": list(settings.learners),
        "targets": list(settings.targets),
        "shots": list(settings.shots),
        "rotogbml": settings.rotogbml,
        "others": settings.others,
        "overrides": list(settings.overrides),
        "version": gradhomog.__version__,
    }


def _open_folder(out: Path, content: dict[str, Any], planned: Sequence[Part], resume: bool) -> dict[str, Any]:
    """Write the description of the experiment into its folder, or compare it with the one that is there; return it.

    Raises:
        ConfigError: the folder is in use, has other settings, or cannot be written.
    """
    content = {**content, "parts": {part.name: part.column for part in planned}}
    path = out / DESCRIPTION
    try:
        out.mkdir(parents=True, exist_ok=True)
        atomic_files.remove_leftovers(out)
        if not path.exists():
            others = {entry.name for entry in out.iterdir()} - {*content["parts"], REPORT, FIGURES}
            if others or (any(out.iterdir()) and not resume):
                raise ConfigError(f"{out} is not empty, and has no {DESCRIPTION}. Choose another --out.")
            atomic_files.write_bytes(path, (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode())
            return content
        text = path.read_bytes()
    except OSError as cause:
        raise ConfigError(f"{out}: cannot be used as output folder: {cause}. Choose another --out.") from cause
    if not resume:
        raise ConfigError(f"{out} already has results. Continue with --resume, or choose another --out.")
    existing = _parse(path, text)
    different = [key for key in content if key not in TEXTS and existing.get(key) != content[key]]
    if different:
        key = different[0]
        raise ConfigError(
            f"{out} has other settings: `{key}` is {existing.get(key)!r} there and {content[key]!r} here. Choose "
            "another --out, or repeat the options of that command."
        )
    return {**content, "version": existing.get("version")}


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        existing = json.loads(text)
        if not isinstance(existing, dict):
            raise ValueError(f"its content is {type(existing).__name__}, not an object")
    except ValueError as cause:
        raise ConfigError(
            f"{path} is damaged ({cause}). Remove it, then run the command that wrote it with --resume."
        ) from cause
    return existing
