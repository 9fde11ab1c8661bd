"""`gradhomog verify DIR`: check that the files of a comparison are complete and unchanged.

Reads results, networks, checkpoints and event logs, and compares them with the digests that were saved with them. The
exit code is 1 if a file is damaged or missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from gradhomog.cli._output import add_json, print_json


def add(commands: Any) -> None:
    command = commands.add_parser(
        "verify", help="check that the files of a comparison are unchanged", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("folder", type=Path, metavar="DIR", help="output folder of `compare` or `train`")
    add_json(command)
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from gradhomog.experiments.results.comparison_dir import Plan
    from gradhomog.experiments.results.verification import verify

    Plan.read(args.folder)  # raises if this is not the folder of a comparison
    results = list(verify(args.folder))
    errors = [error for _, error in results if error is not None]
    if args.json:
        print_json({"files": len(results), "errors": errors})
    else:
        for error in errors:
            print(error, file=sys.stderr)
        print(f"{len(results)} files checked, {len(errors)} damaged or missing")
    return 1 if errors else 0
