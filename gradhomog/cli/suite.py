"""`gradhomog suite [METHOD …]`: where methods stand on fixed problems, and how well they tolerate wrong loss weights.

Results of all built-in methods are stored with the package; rows of other methods, such as your plugin, and stored rows
with --rerun, are computed on the same seeds and data, and kept in a folder, where an interrupted command continues.

  gradhomog suite                                   the stored table
  gradhomog suite my_method 'pcgrad + my_clip'      with your rows, each some minutes on two cores
  gradhomog suite my_method --quick                 a few problems, about a minute
  gradhomog suite --problem klein_gordon            one problem
  gradhomog suite pcgrad --rerun                    compute stored rows again, and compare them
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from gradhomog.cli._output import add_json, print_json


def add(commands: Any) -> None:
    command = commands.add_parser(
        "suite", help="compare methods on fixed problems, and with wrong loss weights", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.set_defaults(run=run)
    command.add_argument(
        "methods", nargs="*", metavar="METHOD", help="a pipeline; with --rerun by default all built-in methods"
    )
    command.add_argument(
        "--problem", action="append", default=[], metavar="NAME", dest="problems", help="only this one; may be repeated"
    )
    command.add_argument("--quick", action="store_true", help="only the problems of the quick suite")
    command.add_argument("--rerun", action="store_true", help="compute stored rows again, and compare them")
    command.add_argument("--jobs", type=int, default=-1, metavar="N", help="processes (default: one per core)")
    command.add_argument("--out", type=Path, default=Path("runs/suite"), metavar="DIR", help="folder of computed rows")
    add_json(command)


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from gradhomog.experiments.suite import tables
    from gradhomog.experiments.suite.agreement import agreement
    from gradhomog.experiments.suite.problems import chosen_problems
    from gradhomog.experiments.suite.results import append_row, read_results, stored_results
    from gradhomog.experiments.suite.rows import built_in_methods, compute_rows, method_names
    from gradhomog.experiments.suite.scores import Scores

    problems = chosen_problems(args.problems, args.quick)
    methods = method_names(args.methods) or (built_in_methods() if args.rerun else [])
    stored, computed = stored_results(), read_results(args.out)
    known = computed if args.rerun else stored.with_rows(computed)
    missing = [
        (problem, method)
        for problem in problems
        for method in methods
        if problem.applies(method) and (problem.name, method) not in known
    ]
    with tqdm(total=len(missing), unit="row", file=sys.stderr, disable=not (missing and sys.stderr.isatty())) as bar:

        def finished(runs: Any) -> None:
            append_row(args.out, runs)
            bar.set_postfix_str(f"{runs[0].problem}: {runs[0].method}")
            bar.update()

        compute_rows(missing, args.jobs, finished)
    results = stored.with_rows(read_results(args.out))
    scores = Scores(results, problems)
    found = scores.scores()
    if args.json:
        print_json({"scores": [dataclasses.asdict(score) for score in found]})
        return 0
    tabled = [tables.problem_table(scores, problem) for problem in scores.problems] if args.problems else []
    for table in tabled or [tables.leaderboard(found)]:
        print(table.text())
    if args.rerun:
        print()
        print(agreement(stored, read_results(args.out)).text())
    return 0
