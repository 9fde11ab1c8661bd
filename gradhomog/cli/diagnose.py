"""`gradhomog diagnose`: measure whether the gradients of the tasks conflict, or are noisy, or differ in norm.

The run file has the same format as for `compare`. The command trains the first learner, or the multi-task problem,
without homogenizers and with the first seed, computes the gradients of independent batches, and prints estimates with
95 % intervals, a recommendation, and the overhead of the pipelines of the run file.
"""

import argparse
import shlex
from dataclasses import replace
from pathlib import Path

from gradhomog.cli._output import add_json, count_bar, print_failures, print_result
from gradhomog.cli._run_command import add_run_file, integer_parser, seconds_parser

SUMMARY = "separate conflict of the tasks' gradients from noise, and recommend a remedy"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_run_file(command)
    command.add_argument(
        "--at", type=integer_parser(0), metavar="STEPS",
        help="number of training steps before the diagnosis (default: 5 %% of train.steps)",
    )  # fmt: skip
    command.add_argument(
        "--batches", type=integer_parser(3), default=48, metavar="B", help="number of measured batches (default: 48)"
    )
    command.add_argument(
        "--seconds", type=seconds_parser("of at least 0"), default=10.0, metavar="S",
        help="time budget for the overhead of the pipelines; 0 omits it (default: 10)",
    )  # fmt: skip
    command.add_argument(
        "--out", type=Path, metavar="DIR", help="write diagnosis.json and diagnosis.txt to this folder"
    )
    add_json(command)


def run(args: argparse.Namespace) -> int:
    from gradhomog.errors import ConfigError
    from gradhomog.experiments.diagnose import RECORD, diagnose
    from gradhomog.experiments.run_file.schema import load

    config = load(args.run_file, args.overrides)
    if args.out is not None and (args.out / RECORD).exists():
        raise ConfigError(f"{args.out} already has a diagnosis. Remove it, or choose another --out.")
    with count_bar("batch") as progress:
        found = diagnose(config, args.at, args.batches, args.seconds, progress)
    arguments = [*([] if args.run_file is None else [str(args.run_file)]), *(f"--set={one}" for one in args.overrides)]
    found = replace(found, run_file=shlex.join(arguments))
    if args.out is not None:
        found.write(args.out)
    print_result(args, found.record(), found.render())
    return 0 if found.overhead is None else print_failures(found.overhead.failures)
