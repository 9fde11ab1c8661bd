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
from typing import Any

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

    from gradhomog.errors import ConfigError
    from gradhomog.experiments.results.events import json_compatible
    from gradhomog.experiments.runs import PLAIN
    from gradhomog.experiments.suite import tables
    from gradhomog.experiments.suite.problems import STATIC, chosen_problems
    from gradhomog.experiments.suite.protocol import built_in_methods, compute_rows, method_names, processor
    from gradhomog.experiments.suite.row_files import append_row, current, read_results, stored_results
    from gradhomog.experiments.suite.scores import Scores

    problems, stored = chosen_problems(args.problems, args.quick), stored_results()
    methods = method_names(args.methods) or (built_in_methods() if args.rerun else [])
    if not (args.problems or args.rerun):  # of other problems, baselines would have to be computed as well
        problems = [problem for problem in problems if (problem.name, STATIC) in stored]
    if methods and not args.rerun:
        methods = list(dict.fromkeys([PLAIN, STATIC, *methods]))
    known = current(read_results(args.out))
    if not args.rerun:
        known = stored | known
        # Rounding differs between processors: the plain mean, to which times and errors are relative, is computed here.
        here = processor()
        known = {row: runs for row, runs in known.items() if row[1] != PLAIN or runs[0].processor == here}
    unknown = [problem.name for problem in problems if not methods and (problem.name, STATIC) not in known]
    if unknown:
        raise ConfigError(f"no rows of {', '.join(unknown)} are stored. Name a method, or compute all rows by --rerun.")
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
    computed = current(read_results(args.out))
    scores = Scores(stored | computed, problems)
    found = scores.scores()
    shown = {problem.name: tables.problem_table(scores, problem) for problem in scores.problems if args.problems}
    agreeing = tables.agreement(stored, computed) if args.rerun else None
    if args.json:
        compared = {problem.name: scores.comparisons(problem) for problem in scores.problems}
        content = {
            "scores": [dataclasses.asdict(score) for score in found],
            "problems": {name: [dataclasses.asdict(row) for row in rows] for name, rows in compared.items()},
            "agreement": agreeing and agreeing.texts,
        }
        print_json(json_compatible(content))
        return 0
    for table in shown.values() if shown else [tables.leaderboard(found)]:
        print(table.text())
    if agreeing is not None:
        print(f"\n{agreeing.text()}")
    return 0
