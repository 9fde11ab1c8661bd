"""Integrity check of a comparison: its files, its runs against its plan, and its data."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError, DamagedCacheWarning, GradhomogError
from gradhomog.experiments.episodes.splits import close_domains
from gradhomog.experiments.execution.comparison import make_plan
from gradhomog.experiments.results import checksums
from gradhomog.experiments.results.comparison_dir import MANIFEST, PLAN, RESULT, Plan, read_result, run_dir
from gradhomog.experiments.run_file import pins
from gradhomog.experiments.run_file.schema import Config, load
from gradhomog.experiments.runs import decided_runs

Checked = Iterator[tuple[Path, str | None]]


def verify(folder: Path) -> Checked:
    """Yield each file of a comparison with its error; None if the file is intact.

    Errors are: a file that is damaged, missing or of another run; a run of the plan that has neither a result nor a
    failure; a folder that is not a run of the plan; data that differ from those of the results; cached pictures that
    differ from those that were decoded. If the data cannot be opened, a message on stderr gives the reason.

    Raises:
        ConfigError: the folder has no `plan.json`.
    """
    try:
        plan = Plan.read(folder)
    except ConfigError as error:
        if not (folder / PLAN).exists():
            raise
        yield folder / PLAN, str(error)
        return
    config = load(None, (), plan.config)
    yield from _verify_runs(folder, plan, config)
    yield from _verify_manifest(folder)
    yield from _verify_data(folder, plan, config)


def _verify_runs(folder: Path, plan: Plan, config: Config) -> Checked:
    results: dict[str, Any] = {}
    ended: set[str] = set()  # with a damaged result, or a failure
    for run in plan.runs:
        found = run_dir(folder, run)
        path = found.path / RESULT
        try:
            if (result := read_result(folder, run, plan, config)) is not None:
                results[run.id] = result
                yield path, None
                yield from checksums.check_files(found.path, result["files"])
                continue
            if found.checkpoint.exists():
                path = found.checkpoint
                checksums.checkpoint_content(path)
                yield path, None
            path = found.events
            if found.failure() is not None:
                ended.add(run.id)
        except ConfigError as error:
            ended.add(run.id)
            yield path, str(error)
    for run in decided_runs(plan.methods, plan.seeds, results, ended):
        if run.id not in results and run.id not in ended:
            path = run_dir(folder, run).path / RESULT
            yield path, f"{path} is missing: the run has not finished, or files were removed. Continue with --resume."
    for path in sorted({*(folder / "runs").glob("*/")} - {run_dir(folder, run).path for run in plan.runs}):
        yield path, f"{path} is not a run of {PLAN}."


def _verify_manifest(folder: Path) -> Checked:
    advice = f"Write the report again: gradhomog report {folder}"
    path = folder / MANIFEST
    try:
        files = checksums.read_json(path, advice)["files"]
    except FileNotFoundError:
        yield path, f"{path} is missing: the comparison has not finished, or the file was removed. {advice}"
    except ConfigError as error:
        yield path, str(error)
    else:
        yield from checksums.check_files(folder, files)


def _verify_data(folder: Path, plan: Plan, config: Config) -> Checked:
    if not plan.fingerprints:
        return
    close_domains()  # data that this process opened before may have changed
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with pins.use_pinned_plugins(config) as pinned:
                fingerprints = make_plan(pinned).fingerprints
        except GradhomogError as cause:
            print(f"{folder}: the data were not compared with those of the results: {cause}", file=sys.stderr)
        else:
            try:
                plan.check_fingerprints(fingerprints, str(folder))
                yield folder / PLAN, None
            except ConfigError as error:
                yield folder / PLAN, str(error)
    for warning in caught:
        if isinstance(warning.message, DamagedCacheWarning):
            yield warning.message.path, str(warning.message)
