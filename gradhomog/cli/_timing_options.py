"""Options and progress of a command that times: rounds, seconds, threads, clock."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from gradhomog.cli._output import add_json


def add_timing_options(command: argparse.ArgumentParser) -> None:
    """Add --threads, --rounds, --seconds, --processor-time and --json."""
    command.add_argument("--threads", type=_count(1), metavar="N", help="of PyTorch; by default the run file's, or 1")
    command.add_argument("--rounds", type=_count(3), default=50, metavar="N", help="at most; 50 by default, 3 or more")
    command.add_argument(
        "--seconds", type=_seconds, default=60.0, metavar="S",
        help="stop after this time, but not before the rounds that a table needs; 60 by default",
    )  # fmt: skip
    command.add_argument(
        "--processor-time", action="store_true",
        help="count the time that this process computes, not that in which it waits: for one thread on a busy machine",
    )  # fmt: skip
    add_json(command)


def clock(given: argparse.Namespace) -> Callable[[], float]:
    """The clock that the options ask for."""
    return time.process_time if given.processor_time else time.perf_counter


def clock_notes(given: argparse.Namespace) -> tuple[str, ...]:
    """A line for under the table, if the clock is not that on the wall."""
    return ("Times are processor time of this process: waiting does not count.",) if given.processor_time else ()


class RoundsBar:
    """A progress bar on standard error, one per table, if that is a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> RoundsBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, most: int) -> None:
        from tqdm import tqdm

        if self._bar is None or done < self._bar.n:
            self.__exit__()
            self._bar = tqdm(total=most, unit="round", dynamic_ncols=True, disable=not sys.stderr.isatty())
        self._bar.update(done - self._bar.n)


def _count(least: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= 1_000_000:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}; got {text!r}")
        return int(text)

    return count


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0; got {text!r}")
    return value
