"""Progress of running runs and requests to stop them, through files: independent of the executor."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from gradhomog.errors import ConfigError
from gradhomog.experiments.results import events
from gradhomog.experiments.results.comparison_dir import run_dir
from gradhomog.experiments.results.runs import Run


class StopFile:
    """A file whose existence makes all runs of one invocation stop, on every machine that shares the folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f".stop-{uuid4().hex}"

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Create the file on SIGINT and SIGTERM within the context; remove it at the end."""

        def request_stop(*_: Any) -> None:
            self.path.touch()

        names = (signal.SIGINT, signal.SIGTERM)
        before: list[Any] = []
        try:
            with suppress(ValueError):  # only the main thread can set signal handlers
                before = [signal.signal(name, request_stop) for name in names]
            yield
        finally:
            for name, previous in zip(names, before, strict=False):
                signal.signal(name, previous)
            self.path.unlink(missing_ok=True)


Progress = Callable[[Mapping[str, Any]], None]

INTERVAL = 0.5


class Monitor:
    """Report the last event of each run in progress.

    Args:
        folder: folder of the comparison.
        progress: called for each new last event `step` (or `start`) of a run, with the content of that event and
            `Run.identity`, as the event `progress`.
    """

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self.runs: Sequence[Run] = ()
        self._sizes: dict[str, int] = {}

    def poll(self) -> None:
        """Read the new events once."""
        for run in self.runs:
            path = run_dir(self.folder, run).events
            try:
                size = path.stat().st_size
                if size == self._sizes.get(run.id):
                    continue
                self._sizes[run.id] = size
                steps = [event for event in events.read_tail(path) if event["event"] in ("step", "start")]
            except (OSError, ConfigError):  # missing as yet, or damaged: its process, or the report, raises the error
                continue
            if steps:
                self.progress({**steps[-1], **run.identity, "event": "progress"})

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Poll every half second within the context."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(INTERVAL):
                self.poll()

        thread = threading.Thread(target=watch, name="gradhomog-monitor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
