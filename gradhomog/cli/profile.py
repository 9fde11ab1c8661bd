"""`gradhomog profile`: measure the time and memory that each homogenizer adds to a training step on this machine.

The run file has the same format as for `compare`. The command creates one learner for each pipeline (for candidates
`a | b`, only for `a`) and two learners without homogenizers. All learners start from the same network and take steps
alternately on the same batches. The ratio to the plain learner is computed for each round.

Close other programs first: a constant load cancels in the ratios, a varying load does not.
"""

import argparse
import os
import time
from collections.abc import Callable

from gradhomog.cli._output import add_json, count_bar, print_failures, print_result
from gradhomog.cli._run_command import add_run_file, integer_parser, seconds_parser


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
        "--seconds", type=seconds_parser("greater than 0"), default=60.0, metavar="S",
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


SUMMARY = "measure the overhead of each homogenizer in a training step"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_run_file(command)
    command.add_argument(
        "--homogenizer", action="append", default=[], metavar="PIPELINE", dest="homogenizers",
        help="measure this pipeline instead of those of the run file; may be repeated",
    )  # fmt: skip
    add_timing_options(command)


def run(args: argparse.Namespace) -> int:
    # Set before torch is imported: the memory profiler warns about blocks that were allocated before it started.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import json

    from gradhomog.experiments.environment import machine, versions
    from gradhomog.experiments.profiling.overhead import step_overheads
    from gradhomog.experiments.run_file.schema import load

    overrides = list(args.overrides)
    if args.homogenizers:  # a JSON list of strings is also valid TOML
        overrides.append(f"homogenizers={json.dumps(args.homogenizers)}")
    if args.threads:
        overrides.append(f"threads={args.threads}")
    config = load(args.run_file, overrides)
    with count_bar("round") as progress:
        tables = step_overheads(
            config, config.learners, rounds=args.rounds, seconds=args.seconds, clock=clock(args), progress=progress
        )  # fmt: skip
    data = {"versions": versions(), "machine": machine(), "tables": [table.record() for table in tables]}
    print_result(args, data, "\n\n".join(table.render() for table in tables))
    codes = [print_failures(table.failures) for table in tables]
    return max(codes)
