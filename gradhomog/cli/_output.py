"""Output that several commands share: JSON, tables, progress bars, durations."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def print_json(value: Any) -> None:
    # Non-ASCII characters are escaped if the output's encoding is not Unicode. Text may lose characters, data may not.
    unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    print(json.dumps(value, indent=2, ensure_ascii=not unicode, default=str))


def print_result(args: Namespace, data: Any, text: str) -> None:
    """Print the result of a command as JSON, or as text if there is any."""
    if args.json:
        print_json(data)
    elif text:
        print(text)


def print_failures(failures: Mapping[str, str]) -> int:
    """Print errors by name on standard error, and return the exit code: 1 if there are errors."""
    for name, message in failures.items():
        print(f"{name} failed: {message}", file=sys.stderr)
    return 1 if failures else 0


@contextmanager
def count_bar(unit: str) -> Iterator[Callable[[int, int], None]]:
    """Context with a function that shows done and total counts on standard error; a smaller count begins another bar.

    Disabled if standard error is not a terminal.
    """
    from tqdm import tqdm

    with tqdm(unit=unit, dynamic_ncols=True, disable=not sys.stderr.isatty()) as bar:

        def show(done: int, total: int) -> None:
            if done < bar.n or bar.total is None:
                bar.reset(total)
            bar.update(done - bar.n)

        yield show


def duration(seconds: float) -> str:
    """A duration as text in seconds, minutes or hours.

    >>> duration(7.4), duration(75), duration(5400), duration(10800)
    ('7 s', '75 s', '90 min', '3.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
