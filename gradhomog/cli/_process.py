"""What the command line asks of its process: a signal that ends it in order, its exit code, and output of any text."""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Within the context SIGTERM raises KeyboardInterrupt, as SIGINT does: what was done is kept, the exit code is 130.

    A handler that somebody else has set, or a SIGTERM that is ignored, stays so.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def forget_interrupt() -> None:
    """Let the process end with the exit code of its program after an interrupt.

    CPython remembers a KeyboardInterrupt that passes through `exec` of a text, as while a dataclass is made in an
    import, and ends the process with SIGINT although it was caught. Running a text resets that.
    """
    exec("")


def print_any_text() -> None:
    """Print `?` for characters that the output's encoding lacks: after hours of training ± must not be an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
