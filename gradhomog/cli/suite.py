"""`gradhomog suite [METHOD …]`: where methods stand on fixed problems, and how well they tolerate wrong loss weights.

Results of all built-in methods are stored with the package; rows of other methods, such as your plugin, and stored rows
with --rerun, are computed on the same seeds and data, and kept in a folder, where an interrupted command continues.

  gradhomog suite                                   the stored table
  gradhomog suite my_method 'pcgrad + my_clip'      with your rows, each some minutes on two cores
  gradhomog suite my_method --quick                 three problems, half a minute
  gradhomog suite --problem policy                  one problem
  gradhomog suite pcgrad --rerun                    compute stored rows again, and compare them
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from gradhomog.cli._output import add_json, print_json
from gradhomog.cli._run_command import add_jobs

SUMMARY = "compare methods on fixed problems, and with wrong loss weights"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "methods", nargs="*", metavar="METHOD", help="a pipeline; with --rerun by default all built-in methods"
    )
    command.add_argument(
        "--problem", action="append", default=[], metavar="NAME", dest="problems", help="only this one; may be repeated"
    )
    command.add_argument("--quick", action="store_true", help="only the problems of the quick suite")
    command.add_argument("--rerun", action="store_true", help="compute stored rows again, and compare them")
    add_jobs(command)
    command.add_argument("--out", type=Path, default=Path("runs/suite"), metavar="DIR", help="folder of computed rows")
    add_json(command)


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from gradhomog.experiments.results.events import json_compatible
    from gradhomog.experiments.suite import tables
    from gradhomog.experiments.suite.execute import run_suite

    with tqdm(unit="row", file=sys.stderr, leave=False, disable=not sys.stderr.isatty()) as bar:

        def progress(name: str, total: int) -> None:
            bar.total = total
            bar.set_postfix_str(name, refresh=bool(total))
            bar.update(bool(name))

        scores, agreement = run_suite(
            args.methods, args.problems, args.out, quick=args.quick, rerun=args.rerun, jobs=args.jobs, progress=progress
        )
    found = scores.scores()
    if args.json:
        compared = {problem.name: scores.comparisons(problem) for problem in scores.problems}
        content = {
            "scores": [dataclasses.asdict(score) for score in found],
            "problems": {name: [dataclasses.asdict(row) for row in rows] for name, rows in compared.items()},
            "agreement": agreement and agreement.texts,
        }
        print_json(json_compatible(content))
        return 0
    shown = [tables.problem_table(scores, problem) for problem in scores.problems if args.problems]
    for table in shown or [tables.leaderboard(found)]:
        print(table.text())
    if agreement is not None:
        print(f"\n{agreement.text()}")
    return 0
