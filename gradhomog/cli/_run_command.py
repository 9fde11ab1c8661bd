"""Options and execution that `train` and `compare` share: run file, overrides, output folder, printed result."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gradhomog.cli._output import add_json, print_failures, print_result

if TYPE_CHECKING:
    from gradhomog.cli._progress import Progress
    from gradhomog.experiments.run_file.schema import Config


def add_run_options(command: argparse.ArgumentParser) -> None:
    """Add a run file, overrides, `--quick` and the options of the execution."""
    add_run_file(command)
    command.add_argument(
        "--quick", action="store_true",
        help="use one seed and one tenth of the training steps and test tasks, to check that the run file works",
    )  # fmt: skip
    add_execution_options(command, "a new folder under runs/")


def add_run_file(command: argparse.ArgumentParser) -> None:
    """Add the run file and its overrides."""
    command.add_argument(
        "run_file", nargs="?", type=Path, metavar="RUN.toml", help="configuration in TOML; omitted keys have defaults"
    )
    add_overrides(command)


def add_overrides(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", dest="overrides",
        help="override a key of the run file; may be repeated",
    )  # fmt: skip


def add_jobs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--jobs", type=integer_parser(0), default=0, metavar="N",
        help="number of simultaneous runs (default: one per core)",
    )  # fmt: skip


def add_execution_options(command: argparse.ArgumentParser, default_out: str) -> None:
    """Add the output folder, resumption, executor and output format."""
    command.add_argument("--out", type=_parse_folder, metavar="DIR", help=f"output folder (default: {default_out})")
    command.add_argument("--resume", action="store_true", help="continue what was interrupted, with the same settings")
    command.add_argument(
        "--executor", default="local", metavar="NAME(options)",
        help="executor of the runs: local (default), dask, slurm or ranks; for example "
        "'slurm(slurm_partition=\"cpu\", timeout_min=60)'",
    )  # fmt: skip
    add_json(command)


def _parse_folder(text: str) -> Path:
    if not text.strip():  # --out "$UNSET" would otherwise be the current folder
        raise argparse.ArgumentTypeError("must be the path of a folder; got an empty string")
    return Path(text)


def integer_parser(minimum: int) -> Callable[[str], int]:
    """Return a parser of integers from `minimum` to one million, for argparse."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not minimum <= int(text) <= 1_000_000:
            raise argparse.ArgumentTypeError(f"must be an integer from {minimum} to 1000000; got {text!r}")
        return int(text)

    return parse


def seconds_parser(bound: str) -> Callable[[str], float]:
    """Return a parser of finite numbers "greater than 0" or "of at least 0", for argparse."""

    def parse(text: str) -> float:
        with suppress(ValueError):
            value = float(text)
            if 0 < value < float("inf") or (value == 0 and bound == "of at least 0"):
                return value
        raise argparse.ArgumentTypeError(f"must be a finite number {bound}; got {text!r}")

    return parse


@contextmanager
def resume_hint(progress: Progress) -> Iterator[None]:
    """If the command is interrupted after it has written results, print the command that continues it."""
    try:
        yield
    except KeyboardInterrupt:
        if progress.started:
            words = [word for word in sys.argv[1:] if word != "--resume"]
            command = shlex.join(["gradhomog", *words, "--resume"])
            print(f"\nFinished work is kept. Continue with: {command}", file=sys.stderr)
        raise


def execute(args: argparse.Namespace, config: Config, stem: str) -> int:
    """Run a comparison with a progress bar, print its table or JSON, and return the exit code: 1 if a run failed."""
    from gradhomog.cli._progress import Progress
    from gradhomog.experiments.analysis.summary import to_json
    from gradhomog.experiments.execution.comparison import compare
    from gradhomog.experiments.report.tables import score_table
    from gradhomog.experiments.run_file.schema import shorten

    if args.quick:
        config, stem = shorten(config), f"{stem}-quick"
    with Progress() as progress, resume_hint(progress):
        outcome = compare(config, args.out, args.resume, progress, stem, jobs=args.jobs, executor=args.executor)
    code = print_failures({f"run {run}": error for run, error in outcome.failures.items()})
    data = {"folder": str(outcome.folder), "failures": outcome.failures, **to_json(outcome.summary)}
    lines = [score_table(outcome.summary).text(), ""]
    if args.quick:
        advice = "Do not compare methods by these numbers."
        lines += [f"--quick: one seed and one tenth of the training steps and test tasks. {advice}", ""]
    report = outcome.folder / "report.html"
    lines.append(f"{report}  the report; figures/, summary.csv and runs/ are in the same folder")
    print_result(args, data, "\n".join(lines))
    return code
