"""Compute the comparisons of an experiment, one folder each, and collect them into one table."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gradhomog
from gradhomog.errors import ConfigError, GradhomogError
from gradhomog.experiments.execution.comparison import Progress, compare, make_plan
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.report.page import REPORT
from gradhomog.experiments.reproduce.comparisons import (
    PlannedComparison,
    Settings,
    find_differences,
    planned_comparisons,
)
from gradhomog.experiments.reproduce.paper_schema import Paper, read_experiment
from gradhomog.experiments.reproduce.paper_scores import PaperScores, collect
from gradhomog.experiments.reproduce.report import write_page
from gradhomog.experiments.results.comparison_dir import PLAN, Plan, check_writable, run_dir
from gradhomog.experiments.runs import decided_runs


@dataclass
class Reproduction:
    """The outcome of an experiment.

    Attributes:
        paper: the paper of the experiment.
        description: settings and data.
        failures: error messages by comparison and run, or by comparison.
    """

    folder: Path
    paper: Paper
    results: PaperScores
    description: dict[str, Any]
    failures: dict[str, str]


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
    """Compute every comparison of an experiment that has no result, write the report, and return the results of all.

    `out/NAME` is the folder of a comparison, with its own report; see `compare`. `out/report.html` is written after
    each comparison. If a comparison fails, the others are still computed. PaperScores do not depend on `jobs` and
    `executor`.

    Args:
        name: an experiment, as for `read_experiment`.
        out: the output folder.
        resume: continue in an existing folder; its comparisons must have the same settings, and data of the same
            content.
        progress: as for `compare`; also called with the record `comparison` before each comparison.

    Raises:
        ConfigError: names, data or folder are invalid. KeyboardInterrupt: after all runs have written checkpoints.
    """
    paper, key = read_experiment(name)
    planned = planned_comparisons(name, settings)
    # Before hours of training: learners, pipelines, networks and data of all comparisons.
    plans = {one.name: make_plan(one.config) for one in planned}
    description = {
        "experiment": name,
        "contents": paper.experiments[key].summary,
        "scale_summary": paper.scales[settings.scale].summary,
        **asdict(settings),
        "data": {name: Path(text).name for name, text in settings.domains.items()},
        "differences": find_differences(settings.domains),
        "version": gradhomog.__version__,
        "comparisons": {one.name: one.column for one in planned},
    }
    check_writable(out)
    if not resume and out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty. Continue with --resume, or choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    for folder_name, new in plans.items():
        if (out / folder_name / PLAN).exists():
            new.read_same(out / folder_name)

    def report() -> PaperScores:
        complete = description["data"].keys() - description["differences"].keys()
        results = collect(paper, key, planned, out, complete)
        write_page(paper, results, description, out)
        return results

    failures: dict[str, str] = {}
    for index, one in enumerate(planned):
        titles = _candidate_titles(one)
        progress({"event": "comparison", "name": one.name, "index": index, "of": len(planned), "titles": titles})
        folder = out / one.name
        if _is_finished(plans[one.name], folder):
            continue
        exists = (folder / PLAN).exists()
        try:
            outcome = compare(one.config, folder, exists, progress, jobs=jobs, executor=executor)
            failures |= {f"{one.name}: {run}": error for run, error in outcome.failures.items()}
        except GradhomogError as error:  # for example, a dry run fails: the others are still computed
            failures[one.name] = str(error)
        if index < len(planned) - 1:  # a page of the comparisons so far; that of all follows
            report()
    return Reproduction(out, paper, report(), description, failures)


def _candidate_titles(one: PlannedComparison) -> dict[tuple[str, str], str]:
    """Titles of the rows by learner and pipeline; candidates of a tuned row are numbered."""
    found: dict[tuple[str, str], str] = {}
    for method, row in zip(make_methods(one.config), one.rows, strict=True):
        for index, text in enumerate(method.candidates):
            found.setdefault((method.learner, text), f"{row.title} {index + 1}" if method.tuned else row.title)
    return found


def _is_finished(planned: Plan, folder: Path) -> bool:
    """True if the folder has the report and every run of this comparison, so that `compare` would change nothing."""
    if not (folder / REPORT).exists() or not (folder / PLAN).exists():
        return False
    results = {run.id: result for run in planned.runs if (result := run_dir(folder, run).result()) is not None}
    return all(run.id in results for run in decided_runs(planned.methods, planned.seeds, results, ()))
