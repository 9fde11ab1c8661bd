"""`gradhomog verify DIR`: whether the files of a comparison are what was written.

Reads results, networks, checkpoints and events, and compares them with the digests that were written with them. Exit
code 1 if a file is damaged or missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from gradhomog.cli._output import add_json, print_json


def add(commands: Any) -> None:
    command = commands.add_parser(
        "verify", help="whether the files of a comparison are what was written", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("folder", type=Path, metavar="DIR", help="the output folder of `compare` or `train`")
    add_json(command)
    command.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from gradhomog.experiments.results.comparison_dir import Plan
    from gradhomog.experiments.results.verification import verify

    Plan.read(given.folder)  # anything else is no folder of ours
    found = list(verify(given.folder))
    errors = [error for _, error in found if error is not None]
    if given.json:
        print_json({"files": len(found), "errors": errors})
    else:
        for error in errors:
            print(error, file=sys.stderr)
        print(f"{len(found)} files read, {len(errors)} damaged or missing")
    return 1 if errors else 0
