"""Output that several commands share: JSON, tables, progress bars, durations."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from gradhomog.terminal import escape_controls


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def print_json(value: Any) -> None:
    # Non-ASCII characters are escaped if the output's encoding is not Unicode. Text may lose characters, data may not.
    unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    print(json.dumps(value, indent=2, ensure_ascii=not unicode, default=str))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print left-aligned columns with two spaces between them."""
    if not rows:
        return
    rows = [[escape_controls(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


class CountBar:
    """A progress bar of done and total counts on standard error; a smaller count begins another bar.

    Disabled if standard error is not a terminal.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._bar: Any = None

    def __enter__(self) -> CountBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, total: int) -> None:
        from tqdm import tqdm

        if self._bar is None or done < self._bar.n:
            self.__exit__()
            self._bar = tqdm(total=total, unit=self._unit, dynamic_ncols=True, disable=not sys.stderr.isatty())
        self._bar.update(done - self._bar.n)


def duration(seconds: float) -> str:
    """A duration as text in seconds, minutes or hours.

    >>> duration(7.4), duration(75), duration(5400), duration(10800)
    ('7 s', '75 s', '90 min', '3.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
