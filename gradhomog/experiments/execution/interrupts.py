"""Interrupts that stop a comparison with checkpoints written."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4


class StopFile:
    """A file whose appearance asks all runs of an invocation to stop, on every machine that shares the folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f".stop-{uuid4().hex}"

    @property
    def asked(self) -> bool:
        return self.path.exists()

    @contextmanager
    def on_interrupt(self) -> Iterator[None]:
        """Within the context SIGINT and SIGTERM make the file; it is removed at the end."""

        def ask(*_: Any) -> None:
            self.path.touch()

        names = (signal.SIGINT, signal.SIGTERM)
        before: list[Any] = []
        try:
            try:
                before = [signal.signal(name, ask) for name in names]
            except ValueError:  # not the main thread, which has interrupts to itself
                before = []
            yield
        finally:
            for name, was in zip(names, before, strict=False):
                signal.signal(name, was)
            self.path.unlink(missing_ok=True)
