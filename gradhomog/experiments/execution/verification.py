"""Integrity check of a comparison: its files, its runs against its plan, and its data."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from gradhomog.errors import ConfigError, DamagedCacheWarning, GradhomogError
from gradhomog.experiments.episodes.splits import close_domains
from gradhomog.experiments.execution.comparison import make_plan
from gradhomog.experiments.results import checksums, events
from gradhomog.experiments.results.comparison_dir import CHECKPOINT, MANIFEST, PLAN, RESULT, Plan, run_dir
from gradhomog.experiments.run_file import pins
from gradhomog.experiments.runs import decided_runs

Errors = Iterator[str | None]
"""The error of each file; None if the file is intact."""


def verify(folder: Path) -> Errors:
    """Yield the error of each file of a comparison; None if the file is intact.

    Errors are: a file that is damaged, missing, added or of another run; a run of the plan that has neither a result
    nor a failure, or another one than the report; a folder that is not a run of the plan; data that differ from those
    of the results; cached pictures that differ from those that were decoded. If the data cannot be opened, a message on
    stderr gives the reason.

    Raises:
        ConfigError: the folder has no `plan.json`.
    """
    try:
        plan = Plan.read(folder)
    except ConfigError as error:
        if not (folder / PLAN).exists():
            raise
        yield str(error)
        return
    yield from _verify_runs(folder, plan)
    yield from _verify_manifest(folder, plan)
    if plan.fingerprints:
        yield from _verify_data(folder, plan)


def _verify_runs(folder: Path, plan: Plan) -> Errors:
    results: dict[str, dict[str, str]] = {}
    ended: set[str] = set()  # with a damaged result, or a failure
    for run in plan.runs:
        found = run_dir(folder, run)
        try:
            if (result := plan.read_result(folder, run)) is not None:
                results[run.id] = result
                yield None
                yield from checksums.check_files(found.path, result["files"])
                added = found.arrays_and_logs() - {found.path / name for name in (*result["files"], CHECKPOINT)}
                yield from (f"{path} was added after the run had finished. Remove it." for path in sorted(added))
                continue
            if found.checkpoint.exists():
                checksums.checkpoint_content(found.checkpoint)
                yield None
            if found.failure() is not None:
                ended.add(run.id)
        except ConfigError as error:
            ended.add(run.id)
            yield str(error)
    for run in decided_runs(plan.methods, plan.seeds, results, ended):
        if run.id not in {*results, *ended}:
            path = run_dir(folder, run).path / RESULT
            yield f"{path} is missing: the run has not finished, or files were removed. Continue with --resume."
    for path in sorted({*(folder / "runs").glob("[!.]*")} - {run_dir(folder, run).path for run in plan.runs}):
        yield f"{path} is not a run of {PLAN}."


class Manifest(TypedDict):
    """The content of `manifest.json`: the SHA-256 by path."""

    files: dict[str, str]


def _verify_manifest(folder: Path, plan: Plan) -> Errors:
    advice = f"Write the report again: gradhomog report {folder}"
    path = folder / MANIFEST
    try:
        content = checksums.read_json(path, advice)
        events.validate(content, Manifest, str(path), advice)
    except FileNotFoundError:
        yield f"{path} is missing: the comparison has not finished, or the file was removed. {advice}"
    except ConfigError as error:
        yield str(error)
    else:
        yield from checksums.check_files(folder, content["files"])
        runs = folder / "runs"
        others = [each for each in folder.rglob("[!.]*") if runs not in each.parents]
        present = {*plan.final_files(folder), *(each for each in others if each.is_file() and each.suffix != ".tmp")}
        for added in sorted(present - {path, *(folder / name for name in content["files"])}):
            yield f"{added} is not listed in {MANIFEST}: it was added after the report. Remove it. {advice}"


def _verify_data(folder: Path, plan: Plan) -> Errors:
    close_domains()  # data that this process opened before may have changed
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with pins.use_pinned_plugins(plan.configuration) as pinned:
                fingerprints = make_plan(pinned).fingerprints
        except GradhomogError as cause:
            print(f"{folder}: the data were not compared with those of the results: {cause}", file=sys.stderr)
        else:
            yield plan.difference_of(fingerprints, str(folder))
    yield from (str(warning.message) for warning in caught if isinstance(warning.message, DamagedCacheWarning))
