"""What goes on in the folders of runs, wherever they are made: read again and again, and told as it appears."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.results import events
from gradhomog.experiments.results.comparison_dir import run_dir
from gradhomog.experiments.results.plan import Run

Progress = Callable[[Mapping[str, Any]], None]

INTERVAL = 0.5


class Monitor:
    """Tells the last event of each run that is in progress, with what identifies the run.

    Args:
        folder: of the comparison.
        progress: called with the last event `step` of a run (or `start`) as often as there is a new one, as the event
            `progress` with `Run.identity`.
    """

    def __init__(self, folder: Path, progress: Progress) -> None:
        self.folder, self.progress = folder, progress
        self.runs: Sequence[Run] = ()
        self._sizes: dict[str, int] = {}

    def poll(self) -> None:
        """Look once."""
        for run in self.runs:
            path = run_dir(self.folder, run).events
            try:
                size = path.stat().st_size
                if size == self._sizes.get(run.id):
                    continue
                self._sizes[run.id] = size
                steps = [event for event in events.last(path) if event["event"] in ("step", "start")]
            except (OSError, ConfigError):  # not there yet, or damaged: its process, or the report, says so
                continue
            if steps:
                self.progress({**steps[-1], **run.identity, "event": "progress"})

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look every half second within the context."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(INTERVAL):
                self.poll()

        thread = threading.Thread(target=watch, name="gradhomog-monitor", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
