"""Interrupts that stop a comparison after its runs have written checkpoints."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4


class StopFile:
    """A file whose existence makes all runs of one invocation stop, on every machine that shares the folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f".stop-{uuid4().hex}"

    @property
    def requested(self) -> bool:
        """True if the file exists."""
        return self.path.exists()

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Create the file on SIGINT and SIGTERM within the context; remove it at the end."""

        def request_stop(*_: Any) -> None:
            self.path.touch()

        names = (signal.SIGINT, signal.SIGTERM)
        before: list[Any] = []
        try:
            try:
                before = [signal.signal(name, request_stop) for name in names]
            except ValueError:  # only the main thread can set signal handlers
                before = []
            yield
        finally:
            for name, previous in zip(names, before, strict=False):
                signal.signal(name, previous)
            self.path.unlink(missing_ok=True)
