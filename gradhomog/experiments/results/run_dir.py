"""The folder of a run, written by the process that trains the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gradhomog.errors import ConfigError
from gradhomog.experiments.results import atomic_files, checksums, events
from gradhomog.experiments.results.events import Record

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
        self.best = path / BEST

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Lock the folder within the context, on all machines that share it. Yield True if the lock was acquired.

        The lock is released when its process ends, even if it is killed.
        """
        self._make()
        lock = FileLock(self.path / ".lock", timeout=0)
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
        suffixes = (".jsonl", ".npz", ".pt", ".toml")  # other files are those of observers, which may still write
        files = {
            path.name: checksums.file_digest(path) for path in sorted(self.path.glob("*.*")) if path.suffix in suffixes
        }
        files.pop(CHECKPOINT, None)
        checksums.write_json(self.path / RESULT, {**result, "files": files})
        self.checkpoint.unlink(missing_ok=True)

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
        """Create the folder and write the run file, if they do not exist."""
        self._make()
        atomic_files.remove_leftovers(self.path)
        if not self.config.exists():
            atomic_files.write_bytes(self.config, config.encode())

    def _make(self) -> None:
        """Create the folder and `runs/`, but not the folder of the comparison: if it is missing, it was removed."""
        self.path.parent.mkdir(exist_ok=True)
        self.path.mkdir(exist_ok=True)
