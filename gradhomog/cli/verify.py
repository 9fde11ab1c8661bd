"""`gradhomog verify DIR`: check that the files of a comparison are complete and unchanged.

Compares the files of runs and of the report with the digests that were saved with them, the runs with the plan, and
the data with those of the results. The exit code is 1 if a file is damaged, missing, added or of another run, if a run
has no result, or if the data have changed.
"""

import argparse
import sys
from pathlib import Path

from gradhomog.cli._output import add_json, print_json

SUMMARY = "check that the files of a comparison are unchanged"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=Path, metavar="DIR", help="output folder of `compare` or `train`")
    add_json(command)


def run(args: argparse.Namespace) -> int:
    from gradhomog.experiments.execution.verification import verify

    results = list(verify(args.folder))
    errors = [error for error in results if error is not None]
    if args.json:
        print_json({"files": len(results), "errors": errors})
    else:
        for error in errors:
            print(error, file=sys.stderr)
        print(f"{len(results)} files checked, {len(errors)} damaged, missing, added or different")
    return 1 if errors else 0
