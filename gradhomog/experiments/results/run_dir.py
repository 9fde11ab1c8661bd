"""The folder of one run, written by the one process that trains it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gradhomog.experiments.results import atomic, events, sealed
from gradhomog.experiments.results.events import Record

CONFIG, EVENTS, CHECKPOINT, RESULT, BEST = "config.toml", "events.jsonl", "checkpoint.pt", "result.json", "best.pt"


class RunDir:
    """`config.toml`, `events.jsonl`, `checkpoint.pt` while it trains, `result.json` and `best.pt` when it is done.

    `config.toml` is a run file of this run alone. The result is written last: where it is, everything is. Killing the
    process loses the steps since the last checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.events, self.checkpoint = path / CONFIG, path / EVENTS, path / CHECKPOINT
        self.best = path / BEST

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold the folder within the context, on all machines that share it; gives whether that was possible.

        It is free when its process ends, however that ends.
        """
        self.path.mkdir(parents=True, exist_ok=True)
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

    def is_held(self) -> bool:
        """Return True if another process holds this run, here or on another machine."""
        if not self.path.exists():
            return False
        with self.lock() as free:
            return not free

    def result(self) -> Any:
        """The `events.Result`; None if the run is not finished.

        Raises:
            ConfigError: it is damaged.
        """
        return sealed.read_result(self.path / RESULT)

    def finish(self, result: Record) -> None:
        """Write the result, and remove the checkpoint."""
        files = {
            path.name: sealed.file_digest(path)
            for path in sorted(self.path.iterdir())
            if path.suffix in (".pt", ".npz")
        }
        files.pop(CHECKPOINT, None)
        sealed.write_result(self.path / RESULT, {**result, "version": events.VERSION, "files": files})
        self.checkpoint.unlink(missing_ok=True)

    def record_failure(self, error: str) -> None:
        """Write the event of an error with which the run ended, unless it ended with such an event."""
        with self.lock() as free:
            if free and self.failure() is None:
                # Half a line, which a killed process leaves, would spoil this one.
                whole = self.events.read_bytes().rfind(b"\n") + 1 if self.events.exists() else 0
                log = events.EventLog(self.events, whole)
                log.append({"event": "failed", "step": 0, "error": error})

    def failure(self) -> str | None:
        """The error with which the run ended; None if it did not."""
        last = events.read(self.events)[-1:]
        return str(last[0]["error"]) if last and last[0]["event"] == "failed" else None

    def begin(self, config: str) -> None:
        """Make the folder with the run file in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        atomic.remove_leftovers(self.path)
        if not self.config.exists():
            atomic.write(self.config, config.encode())
