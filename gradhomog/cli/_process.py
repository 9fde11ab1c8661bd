"""Process settings of the command line: SIGTERM handling, exit code after an interrupt, encoding errors in output."""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Context in which SIGTERM raises KeyboardInterrupt, as SIGINT does: finished work is kept, the exit code is 130.

    If another SIGTERM handler is set, or SIGTERM is ignored, nothing is changed.
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


def clear_interrupt() -> None:
    """Let the process end with the program's exit code after an interrupt.

    CPython marks a KeyboardInterrupt that passes through `exec` of a string (for example, when a dataclass is created
    during an import) as unhandled, and ends the process with SIGINT although the exception was caught. Another `exec`
    of a string resets the mark.
    """
    exec("")


def replace_unencodable_characters() -> None:
    """Print `?` for characters that the output's encoding lacks, so that `±` is no error after hours of training."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
