"""Options and progress bar of commands that measure time: threads, rounds, seconds, clock."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from gradhomog.cli._output import add_json


def add_timing_options(command: argparse.ArgumentParser) -> None:
    """Add --threads, --rounds, --seconds, --processor-time and --json."""
    command.add_argument(
        "--threads", type=integer_parser(1), metavar="N",
        help="number of PyTorch threads (default: `threads` of the run file, or 1)",
    )  # fmt: skip
    command.add_argument(
        "--rounds", type=integer_parser(3), default=50, metavar="N",
        help="maximum number of rounds, at least 3 (default: 50)",
    )  # fmt: skip
    command.add_argument(
        "--seconds", type=_parse_seconds, default=60.0, metavar="S",
        help="time budget; the minimum number of rounds is completed even if it takes longer (default: 60)",
    )  # fmt: skip
    command.add_argument(
        "--processor-time", action="store_true",
        help="measure processor time instead of wall-clock time: for a single thread on a busy machine",
    )  # fmt: skip
    add_json(command)


def clock(args: argparse.Namespace) -> Callable[[], float]:
    """The clock that the options select."""
    return time.process_time if args.processor_time else time.perf_counter


class RoundsBar:
    """A progress bar on standard error, one per table; disabled if standard error is not a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> RoundsBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, total: int) -> None:
        from tqdm import tqdm

        if self._bar is None or done < self._bar.n:
            self.__exit__()
            self._bar = tqdm(total=total, unit="round", dynamic_ncols=True, disable=not sys.stderr.isatty())
        self._bar.update(done - self._bar.n)


def integer_parser(minimum: int) -> Callable[[str], int]:
    """Return a parser of integers from `minimum` to one million, for argparse."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not minimum <= int(text) <= 1_000_000:
            raise argparse.ArgumentTypeError(f"must be an integer from {minimum} to 1000000; got {text!r}")
        return int(text)

    return parse


def _parse_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a finite number greater than 0; got {text!r}")
    return value
