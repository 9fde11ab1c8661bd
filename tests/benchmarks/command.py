"""The command line of a benchmark: `python -m tests.benchmarks.NAME`, from the root of the repository."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from gradhomog.cli._output import print_json
from gradhomog.cli._timing_options import RoundsBar, add_timing_options, clock, clock_notes
from gradhomog.errors import GradhomogError
from gradhomog.experiments.execution.environment import machine, versions
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.comparison import Comparison


def main(benchmark: Benchmark, description: str | None, arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark, print its tables as Markdown, and return the exit code: 1 for failures, 2 for invalid input."""
    program = f"python -m tests.benchmarks.{benchmark.name}"
    words = list(sys.argv[1:] if arguments is None else arguments)
    args = parser(benchmark, program, description).parse_args(words)
    try:
        with RoundsBar() as progress:
            comparisons = benchmark(
                args.expressions, args.shapes, rounds=args.rounds, seconds=args.seconds,
                thread_count=args.threads or 1, clock=clock(args), progress=progress,
            )  # fmt: skip
    except GradhomogError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    comparisons = [with_notes(comparison, clock_notes(args)) for comparison in comparisons]
    text = "\n\n".join(comparison.markdown() for comparison in comparisons)
    if args.out is not None:
        environment = ", ".join(f"{name} {version}" for name, version in versions().items() if version)
        command = " ".join([program, shlex.join(words)]).rstrip()
        args.out.write_text(f"```console\n$ {command}\n```\n\n{environment}.\n\n{text}\n", encoding="utf-8")
    if args.json:
        tables = [comparison.record() for comparison in comparisons]
        print_json({"benchmark": benchmark.name, "versions": versions(), "machine": machine(), "tables": tables})
    else:
        print(text)
    return 1 if any(comparison.table.failures for comparison in comparisons) else 0


def parser(benchmark: Benchmark, program: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of the options of a benchmark."""
    command = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    command.add_argument(
        f"--{benchmark.kind}", action="append", default=[], metavar=benchmark.kind.upper(), dest="expressions",
        help="time this one instead of the default list; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "--shape", action="append", default=[], type=shape, metavar="AxB", dest="shapes",
        help=f"shape of the inputs: {' or '.join(benchmark.forms)}; may be repeated",
    )  # fmt: skip
    command.add_argument("--out", type=file, metavar="FILE", help="also write the tables to this Markdown file")
    add_timing_options(command)
    return command


def with_notes(comparison: Comparison, notes: tuple[str, ...]) -> Comparison:
    """The comparison with additional notes."""
    table = dataclasses.replace(comparison.table, notes=(*comparison.table.notes, *notes))
    return dataclasses.replace(comparison, table=table)


def shape(text: str) -> tuple[int, ...]:
    """`4x75x64` as numbers."""
    try:
        return tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers separated by x; got {text!r}") from None


def file(text: str) -> Path:
    """The path of an output file, validated before the benchmark, which may take minutes."""
    path = Path(text)
    if not text.strip() or path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file in an existing folder; got {text!r}")
    return path
