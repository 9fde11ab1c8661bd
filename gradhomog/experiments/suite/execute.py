"""The rows of some methods on some problems: those that are stored, and the others, which are computed and kept."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from gradhomog.errors import ConfigError, GradhomogError
from gradhomog.experiments.runs import PLAIN
from gradhomog.experiments.suite.problems import GIVEN, STATIC, SuiteProblem, chosen_problems
from gradhomog.experiments.suite.protocol import SuiteRun, built_in_methods, compute_rows, make, method_names, processor
from gradhomog.experiments.suite.row_files import (
    Results,
    append_row,
    current,
    read_results,
    stored_results,
    write_environment,
)
from gradhomog.experiments.suite.scores import Scores
from gradhomog.experiments.suite.tables import agreement
from gradhomog.table import Table

Progress = Callable[[str, int], None]
"""Called with the name of the last row, empty at the start, and with the number of rows."""


def run_suite(
    methods: Sequence[str],
    names: Sequence[str],
    folder: Path,
    *,
    quick: bool,
    rerun: bool,
    jobs: int,
    progress: Progress,
) -> tuple[Scores, Table | None]:
    """Return the scores of all methods, after computing the rows that are missing; they are kept in the folder.

    Args:
        methods: pipelines, whose rows are computed with those of the baselines; none: the stored rows are reported.
        names: problems; none: those of the suite.
        quick: True for the problems of the quick suite only.
        rerun: compute stored rows again, by default all; the second result is their agreement.

    Raises:
        GradhomogError: a method or a problem is invalid, or there are no rows of a problem.
    """
    problems, stored, asked = chosen_problems(names, quick), stored_results(), method_names(methods)
    if rerun:
        missing = _missing(problems, asked or built_in_methods(), current(read_results(folder)))
    else:
        if not names:  # of other problems, baselines would have to be computed as well
            problems = [problem for problem in problems if (problem.name, STATIC) in stored]
        known = stored | current(read_results(folder))
        missing = _missing(problems, [PLAIN, STATIC, *asked] if asked else [], _of_this_processor(known))
        unknown = [problem.name for problem in problems if not asked and (problem.name, STATIC) not in known]
        if unknown:
            raise ConfigError(
                f"no rows of {', '.join(unknown)} are stored. Name a method, or compute all rows by --rerun."
            )

    missing = _with_data(missing, is_named=bool(names))

    def finished(runs: Sequence[SuiteRun]) -> None:
        append_row(folder, runs)
        progress(f"{runs[0].problem}: {runs[0].method}", len(missing))

    progress("", len(missing))
    if missing:
        write_environment(folder)
    compute_rows(missing, jobs, finished)
    computed = current(read_results(folder))
    return Scores(stored | computed, problems), agreement(stored, computed) if rerun else None


def _of_this_processor(known: Results) -> Results:
    """The rows without plain means of other processors, where rounding differs: times and errors are relative to it."""
    here = processor()
    return {row: runs for row, runs in known.items() if row[1] != PLAIN or runs[0].processor == here}


def _with_data(rows: Sequence[tuple[SuiteProblem, str]], is_named: bool) -> list[tuple[SuiteProblem, str]]:
    """The rows of problems whose data and packages are present; those of named problems must be."""
    absent = set()
    for problem in {problem.name: problem for problem, _ in rows}.values():
        try:
            make(problem, PLAIN, problem.seeds[0], problem.rates[0], GIVEN)
        except GradhomogError as error:
            if is_named:
                raise
            print(f"{problem.name} is omitted: {error}", file=sys.stderr)
            absent.add(problem.name)
    return [row for row in rows if row[0].name not in absent]


def _missing(
    problems: Sequence[SuiteProblem], methods: Sequence[str], known: Results
) -> list[tuple[SuiteProblem, str]]:
    """The rows of these problems and methods that exist by the protocol, and are not known."""
    return [
        (problem, method)
        for problem in problems
        for method in dict.fromkeys(methods)
        if problem.applies(method) and (problem.name, method) not in known
    ]
