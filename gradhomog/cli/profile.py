"""Measure the time and memory that each homogenizer adds to a training step, on your model, tasks and machine.

Reads the run file of `compare`. One learner per homogenizer (of `a | b` the first) and two plain ones start from the
same network and take their steps in turn on the same batches; ratios to plain are taken within each round.

Close other programs first: a constant load cancels in the ratios, a varying one does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from gradhomog.cli._output import print_json
from gradhomog.cli._timing_options import RoundsBar, add_timing_options, clock, clock_notes


def add(commands: Any) -> None:
    command = commands.add_parser(
        "profile", help="the overhead of each homogenizer in a training step", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.set_defaults(run=run)
    command.add_argument("run_file", nargs="?", type=Path, metavar="RUN.toml", help="what is left out has a default")
    command.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", dest="overrides", help="override a key of the run file"
    )
    command.add_argument(
        "--homogenizer", action="append", default=[], metavar="PIPELINE", dest="homogenizers",
        help="profile this one instead of the run file's; may be repeated",
    )  # fmt: skip
    add_timing_options(command)


def run(given: argparse.Namespace) -> int:
    # Before torch is imported: the profiler of memory warns about blocks that were allocated before it started.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import json

    from gradhomog.experiments.config.schema import load
    from gradhomog.experiments.profiling.overhead import step_overheads

    overrides = list(given.overrides)
    if given.homogenizers:  # a JSON list of strings is TOML, too
        overrides.append(f"homogenizers={json.dumps(given.homogenizers)}")
    if given.threads:
        overrides.append(f"threads={given.threads}")
    config = load(given.run_file, overrides)
    with RoundsBar() as progress:
        tables = step_overheads(
            config, rounds=given.rounds, seconds=given.seconds, clock=clock(given), progress=progress
        )  # fmt: skip
    tables = [dataclasses.replace(table, notes=(*table.notes, *clock_notes(given))) for table in tables]
    if given.json:
        from gradhomog.experiments.execution.environment import machine, versions
        from gradhomog.experiments.profiling.table import to_json

        print_json({"versions": versions(), "machine": machine(), "tables": [to_json(table) for table in tables]})
    else:
        from gradhomog.experiments.profiling.table_text import render

        print("\n\n".join(render(table) for table in tables))
    failed = [f"{label} failed: {message}" for table in tables for label, message in table.failures.items()]
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0
