"""The folder of a comparison: `run.toml`, `plan.json`, `runs/` with one folder per run, and the report.

The process that trains a run writes its folder.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen
from filelock import FileLock, Timeout

from gradhomog.errors import ConfigError
from gradhomog.experiments.results import atomic_files, checksums, events
from gradhomog.experiments.results.events import Record
from gradhomog.experiments.run_file.schema import Config, load
from gradhomog.experiments.run_file.toml import flatten
from gradhomog.experiments.run_file.validation import build
from gradhomog.experiments.runs import Method, Run

ROOT = Path("runs")
RUN_FILE, PLAN, MANIFEST, LOCK = "run.toml", "plan.json", "manifest.json", ".lock"


@dataclass(frozen=True)
class Plan:
    """The content of `plan.json`: configuration, methods and seeds of a comparison.

    Attributes:
        config: the resolved configuration.
        digest: hash of the configuration.
        methods: the rows of the table, in its order.
        metadata: `fingerprints` (a hash of the data of each domain that reads or renders data, as the network receives
            them, in the order of the configuration); for a multi-task problem, also `tasks` (names) and `notes`
            (sentences about the data). `held_out` is False if candidates are selected by the same scores that the
            table reports.
    """

    config: dict[str, Any]
    digest: str
    methods: list[Method]
    seeds: Annotated[list[int], MinLen(1)]
    metadata: dict[str, Any]

    @property
    def runs(self) -> list[Run]:
        """All runs that the comparison may compute, tuned methods with each candidate and each seed."""
        runs = [Run(row.learner, text, seed) for row in self.methods for text in row.candidates for seed in self.seeds]
        return list(dict.fromkeys(runs))

    @property
    def fingerprints(self) -> dict[str, str]:
        return dict(self.metadata.get("fingerprints", {}))

    @functools.cached_property
    def configuration(self) -> Config:
        """The resolved configuration.

        Raises:
            ConfigError: it is of another version.
        """
        return build(Config, self.config)

    def read_result(self, folder: Path, run: Run) -> Any:
        """Return the result of a run in the folder of this comparison; None if the run is not finished.

        Raises:
            ConfigError: the file is damaged, or of another run, configuration or data than those of the plan.
        """
        run_folder = run_dir(folder, run)
        if (result := run_folder.result()) is not None:
            if result["digest"] != self.configuration.for_run(run).digest:
                raise ConfigError(
                    f"{folder} contains a result of another configuration: {run.id}. Choose another --out."
                )
            self.check_fingerprints(result["fingerprints"], str(run_folder.path))
        return result

    def final_files(self, folder: Path) -> list[Path]:
        """Return the last file of each run of this comparison that has ended, in its folder."""
        return [final for run in self.runs if (final := run_dir(folder, run).final_file()) is not None]

    def check_fingerprints(self, fingerprints: Mapping[str, str], where: str) -> None:
        """Raise ConfigError with the `difference_of` the data, if there is one."""
        if (difference := self.difference_of(fingerprints, where)) is not None:
            raise ConfigError(difference)

    def difference_of(self, fingerprints: Mapping[str, str], where: str) -> str | None:
        """Return the first difference of the data of results `where` from those of this plan; paths may differ."""
        pairs = itertools.zip_longest(self.fingerprints.items(), fingerprints.items(), fillvalue=("no data", ""))
        for (name, expected), (_, found) in pairs:
            if expected != found:
                return (
                    f"{where} has results of other data: the content of {name} differs (fingerprint "
                    f"{expected or 'none'} and {found or 'none'}). Results of different data cannot be combined in one "
                    "table. Restore the data, or choose another --out."
                )
        return None

    def write(self, folder: Path) -> None:
        """Write `plan.json`; an existing one is not changed.

        Raises:
            ConfigError: the existing plan has another configuration, other data or other plugins.
        """
        if not (folder / PLAN).exists():
            checksums.write_json(folder / PLAN, asdict(self))
            return
        existing = self.read_same(folder)
        if (existing_pins := existing.config["plugins"]) != self.config["plugins"]:
            changed = sorted({*existing_pins} ^ {*self.config["plugins"]})
            raise ConfigError(
                f"{folder} contains results of other plugins. They cannot be combined in one table. These plugins "
                f"are pinned in only one of the two configurations: {', '.join(changed)}. Choose another --out."
            )

    def read_same(self, folder: Path) -> Plan:
        """Return the plan of a folder, which may have other plugins and other folders of data than this one.

        Raises:
            ConfigError: it has another configuration or other data.
        """
        existing = Plan.read(folder)
        if existing.digest != self.digest:  # the run file may have been edited
            raise ConfigError(
                f"{folder} contains results of another configuration. They cannot be combined in one table. Choose "
                "another --out."
            )
        self.check_fingerprints(existing.fingerprints, str(folder))
        return existing

    @classmethod
    def read(cls, folder: Path) -> Plan:
        """Return the plan of a folder.

        Raises:
            ConfigError: the file is missing, damaged or of another version.
        """
        path, advice = folder / PLAN, "Remove it, then run the command that wrote it with --resume."
        try:
            content = checksums.read_json(path, advice)
            content.pop("version", None)
            plan = build(cls, content)
            plan.configuration  # noqa: B018  an invalid one raises here, with the path
            return plan
        except OSError as cause:
            raise ConfigError(
                f"{folder}: cannot read {PLAN}: {cause.strerror}. Pass an output folder of `gradhomog compare` or "
                "`train`."
            ) from cause
        except ConfigError as cause:
            if str(path) in str(cause):
                raise
            raise ConfigError(f"{path} is damaged: {cause} {advice}") from cause


CONFIG, EVENTS, CHECKPOINT, RESULT, BEST = "config.toml", "events.jsonl", "checkpoint.pt", "result.json", "best.pt"


class RunDir:
    """Paths and content of a run's folder: `config.toml`, `events.jsonl`, `checkpoint.pt` (only during training),
    `result.json` and `best.pt`.

    `config.toml` is a run file of this run only. The result is written last: if it exists, all files are complete.
    Killing the process loses the steps since the last checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.events, self.checkpoint = path / CONFIG, path / EVENTS, path / CHECKPOINT

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Lock the folder within the context, on all machines that share it. Yield True if the lock was acquired.

        The lock is released when its process ends, even if it is killed.
        """
        self._make()
        lock = FileLock(self.path / LOCK, timeout=0)
        try:
            lock.acquire()
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def is_locked(self) -> bool:
        """True if another process, on this or another machine, holds the lock of this run."""
        if not self.path.exists():
            return False
        with self.lock() as acquired:
            return not acquired

    def result(self) -> Any:
        """Return the `events.Result`; None if the run is not finished.

        Raises:
            ConfigError: the file is damaged, not a result of this version, or the result of another run than its
                folder's.
        """
        path, advice = self.path / RESULT, "Remove it to continue this run from its last checkpoint, or from the start."
        try:
            result = checksums.read_json(path, advice)
        except FileNotFoundError:
            return None
        events.validate(result, events.Result, str(path), advice)
        if result["run"] != self.path.name:
            raise ConfigError(
                f"{path} is the result of the run {result['run']}, not of {self.path.name}: the folder was renamed or "
                "overwritten by a copy. Restore it, or remove the folder to train this run again."
            )
        return result

    def finish(self, result: Record) -> None:
        """Write the result, with the digests of the run file, the events and the arrays; remove the checkpoint."""
        files = {path.name: checksums.file_digest(path) for path in sorted(self.arrays_and_logs())}
        files.pop(CHECKPOINT, None)
        checksums.write_json(self.path / RESULT, {**result, "files": files})
        self.checkpoint.unlink(missing_ok=True)

    def arrays_and_logs(self) -> set[Path]:
        """Return the files that a result has the digests of; others are those of observers, which may still write."""
        return {path for path in self.path.glob("*.*") if path.suffix in (".jsonl", ".npz", ".pt", ".toml")}

    def final_file(self) -> Path | None:
        """Return the result of a finished run, or the events of a failed one, else None."""
        result = self.path / RESULT
        return result if result.exists() else self.events if self.failure() is not None else None

    def record_failure(self, error: str) -> None:
        """Write the event `failed` with the error that ended the run, unless the log already ends with this event."""
        with self.lock() as acquired:
            if acquired and self.failure() is None:
                # Cut off an unfinished line of a killed process: it would join this event's line.
                complete = self.events.read_bytes().rfind(b"\n") + 1 if self.events.exists() else 0
                log = events.EventLog(self.events, complete)
                log.append({"event": "failed", "step": 0, "error": error})

    def failure(self) -> str | None:
        """Return the error that ended the run; None if the run did not fail."""
        last = events.read(self.events)[-1:]
        return str(last[0]["error"]) if last and last[0]["event"] == "failed" else None

    def create(self, config: str) -> None:
        """Create the folder and write the run file, if they do not exist; called by the process that has the lock."""
        self._make()
        atomic_files.remove_leftovers(self.path)
        if not self.config.exists():
            atomic_files.write_bytes(self.config, config.encode())

    def _make(self) -> None:
        """Create the folder and `runs/`, but not the folder of the comparison: if it is missing, it was removed."""
        self.path.parent.mkdir(exist_ok=True)
        self.path.mkdir(exist_ok=True)


def run_dir(folder: Path, run: Run) -> RunDir:
    """Return the folder of a run within the folder of its comparison."""
    return RunDir(folder / "runs" / run.id)


def choose_folder(config: Config, out: Path | None, resume: bool, stem: str) -> Path:
    """Return the output folder; it may not exist yet.

    Without `out`, this is a new folder `runs/<stem>`, `runs/<stem>-2`, …; with `resume`, the latest of these with this
    configuration.

    Raises:
        ConfigError: the folder contains results and `resume` is False, or it has another configuration, or it cannot be
            written, or there is no folder to resume.
    """
    if out is None:
        number = max(_numbered_folders(stem), default=0) + 1
        new = ROOT / (stem if number == 1 else f"{stem}-{number}")
        out = _latest_folder(config, stem) if resume else new
    existing = out / RUN_FILE
    if resume and not existing.exists():
        raise ConfigError(f"{out} holds nothing to resume: no {RUN_FILE}. Remove --resume to start there.")
    if existing.exists():
        _check_same_configuration(config, load(existing), out)
        if (out / PLAN).exists() and not resume:
            raise ConfigError(f"{out} already contains results. Add --resume to continue, or choose another --out.")
    check_writable(out)
    return out


def can_be_resumed(config: Config, out: Path | None, stem: str) -> bool:
    """True if `choose_folder` finds a folder to resume."""
    try:
        return (choose_folder(config, out, resume=True, stem=stem) / RUN_FILE).exists()
    except ConfigError:
        return False


def check_writable(folder: Path) -> None:
    """Check that the folder can be created or written.

    Raises:
        ConfigError: it cannot.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"{folder}: the output folder cannot be written: {existing} is a file. Choose another --out.")
    if not os.access(existing, os.W_OK):
        raise ConfigError(
            f"{folder}: the output folder cannot be written: no permission for {existing}. Choose another --out."
        )


def with_pins(config: Config, folder: Path) -> Config:
    """Return the configuration; if it pins no plugins, with the pinned plugins of the folder's existing results.

    Raises:
        ConfigError: the folder's plan is damaged.
    """
    if config.plugins or not (folder / PLAN).exists():
        return config
    return dataclasses.replace(config, plugins=Plan.read(folder).config["plugins"])


def lock(folder: Path) -> FileLock:
    """Return the context in which no other process writes files of a comparison, except in the folders of its runs."""
    return FileLock(folder / LOCK)


def create_folder(config: Config, out: Path) -> None:
    """Write the resolved configuration of a comparison into its folder, within `lock`."""
    if not (out / RUN_FILE).exists():  # an existing file may be the user's, with comments
        atomic_files.write_bytes(out / RUN_FILE, config.to_toml().encode())
    atomic_files.remove_leftovers(out)


def _numbered_folders(stem: str) -> dict[int, Path]:
    """Return the existing folders of a stem, by number."""
    folders = {}
    for path in ROOT.glob(f"{stem}*"):
        name = re.fullmatch(rf"{re.escape(stem)}(?:-(\d+))?", path.name)
        if name:
            folders[int(name[1] or 1)] = path
    return folders


def _latest_folder(config: Config, stem: str) -> Path:
    for _, path in sorted(_numbered_folders(stem).items(), reverse=True):
        with suppress(ConfigError):  # the run file is missing or of another version: cannot be resumed
            if load(path / RUN_FILE).digest == config.digest:
                return path
    raise ConfigError(f"no folder {ROOT / stem}* has this configuration to resume. Pass the folder by --out.")


def _check_same_configuration(config: Config, other: Config, out: Path) -> None:
    if config.with_baselines() == config:
        other = other.with_baselines()  # a user's run file in the folder may omit the baselines
    if config.digest == other.digest:
        return
    ours, theirs = flatten(config.result_settings()), flatten(other.result_settings())
    differing = [key for key in ours if ours[key] != theirs.get(key)]
    first = differing[0]
    raise ConfigError(
        f"{out} has another configuration: `{first}` is {theirs.get(first)!r} there and {ours[first]!r} here"
        f"{f' (and {len(differing) - 1} more keys differ)' if len(differing) > 1 else ''}. "
        f"Choose another --out, or run that configuration: {out / RUN_FILE}."
    )
