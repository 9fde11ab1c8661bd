"""What `train` and `compare` share: the run file, overrides, the output folder, and the end."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradhomog.cli._output import add_json, print_json

Run = Callable[[argparse.Namespace], int]

if TYPE_CHECKING:
    from gradhomog.experiments.config.schema import Config


def add_run_command(commands: Any, name: str, summary: str, description: str | None, run: Run) -> None:
    """A command that takes a run file, overrides and an output folder."""
    command = commands.add_parser(
        name, help=summary, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.set_defaults(run=run)
    command.add_argument("run_file", nargs="?", type=Path, metavar="RUN.toml", help="what is left out has a default")
    command.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", dest="overrides", help="override a key of the run file"
    )
    command.add_argument("--out", type=_folder, metavar="DIR", help="output folder; by default a new one under runs/")
    command.add_argument(
        "--quick", action="store_true", help="a tenth of the training and one seed: to see that it works"
    )
    command.add_argument("--resume", action="store_true", help="go on where a run of this configuration stopped")
    command.add_argument(
        "--jobs",
        type=_jobs,
        default=0,
        metavar="N",
        help="runs at a time; by default one per core",
    )
    command.add_argument(
        "--executor", default="local", metavar="NAME(options)",
        help="where runs are made: local, dask, ray or slurm, such as 'slurm(slurm_partition=\"cpu\", timeout_min=60)'",
    )  # fmt: skip
    add_json(command)


def _folder(text: str) -> Path:
    if not text.strip():  # --out "$UNSET" would otherwise be the current folder
        raise argparse.ArgumentTypeError("needs the name of a folder; got an empty text")
    return Path(text)


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) > 1_000_000:
        raise argparse.ArgumentTypeError(f"must be a whole number, 0 for one per core; got {text!r}")
    return int(text)


def execute(given: argparse.Namespace, config: Config, stem: str) -> int:
    """Run a comparison with a progress bar; print its table or JSON; 1 if a run failed."""
    import shlex
    import sys

    from gradhomog.cli._progress import Progress
    from gradhomog.experiments.analysis.summary import to_json
    from gradhomog.experiments.config.quick import quick
    from gradhomog.experiments.execution.comparison import compare
    from gradhomog.experiments.report.tables import render_table

    if given.quick:
        config, stem = quick(config), f"{stem}-quick"
    with Progress() as progress:
        try:
            outcome = compare(config, given.out, given.resume, progress, stem, jobs=given.jobs, executor=given.executor)
        except KeyboardInterrupt:
            if progress.started:
                words = [word for word in sys.argv[1:] if word != "--resume"]
                again = shlex.join(["gradhomog", *words, "--resume"])
                print(f"\nWhat was done is kept. Go on with: {again}", file=sys.stderr)
            raise
    for run, error in outcome.failures.items():
        print(f"run {run} failed: {error}", file=sys.stderr)
    if given.json:
        print_json({"folder": str(outcome.folder), "failures": outcome.failures, **to_json(outcome.summary)})
    else:
        print(render_table(outcome.summary))
        if given.quick:
            print("\n--quick: a tenth of the training and one seed. These numbers do not compare methods.")
        print(f"\n{outcome.folder / 'report.html'}  the report; figures, summary.csv and runs/ beside it")
    return 1 if outcome.failures else 0
