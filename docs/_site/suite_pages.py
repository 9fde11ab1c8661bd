"""The leaderboard of the suite and a page for each of its problems, from the results in the package."""

import math
from pathlib import Path

from _site import suite_figure
from gradhomog.experiments.runs import PLAIN
from gradhomog.experiments.suite import tables
from gradhomog.experiments.suite.problems import FACTORS, problems
from gradhomog.experiments.suite.row_files import stored_results
from gradhomog.experiments.suite.scores import Score, Scores
from gradhomog.table import Table

DRAWN = 5
"""Number of methods in the figure: the first ones of the table, beside the plain mean."""

AUTO, COMPARED = "auto", 3
"""The method of the certificate, and the number of other methods in it."""

ONE_PASS = 1.25
"""Methods below this ratio of times to the plain mean are listed as those of one backward pass."""


def pages(source: Path) -> dict[str, str]:
    """Return the pages by path; write the figure beside them."""
    scores = Scores(stored_results(), list(problems().values()))
    found = scores.scores()
    folder = source / "results" / "suite"
    folder.mkdir(parents=True, exist_ok=True)
    suite_figure.draw(
        scores, [score.method for score in found if not math.isnan(score.misscaled)][:DRAWN], folder / "regret.svg"
    )
    leaderboard = [
        "# Leaderboard of the suite", "", "`gradhomog suite` prints this table; `gradhomog suite my_method` adds your "
        "row. [Reading](../suite.md).", "", *_table(tables.leaderboard(found)),
        "![Median regret over processor time, and over the factor of one loss.](regret.svg)", "", "## Problems", "",
        *(f"- [{problem.name}]({problem.name}.md): {problem.question}" for problem in scores.problems), "",
        "```{toctree}", ":hidden:", "", *(problem.name for problem in scores.problems), "```", "",
    ]  # fmt: skip
    by_problem = {
        f"results/suite/{problem.name}.md": "\n".join([
            f"# {problem.name}", "", *_table(tables.problem_table(scores, problem)),
        ])
        for problem in scores.problems
    }  # fmt: skip
    measured = [score for score in found if not math.isnan(score.misscaled) and not score.failures]
    choice = [
        *("One backward pass, or little more:", "", tables.leaderboard(_best(measured, 0, ONE_PASS)).markdown(), ""),
        *("One backward pass per task:", "", *_table(tables.leaderboard(_best(measured, ONE_PASS, math.inf)))),
    ]
    others = [score.method for score in measured if score.method not in (PLAIN, AUTO)][:COMPARED]
    return {
        "results/suite/leaderboard.md": "\n".join(leaderboard), "methods/_choice.md": "\n".join(choice),
        "methods/_certificate.md": _certificate(scores, [AUTO, PLAIN, *others]).markdown(), **by_problem,
    }  # fmt: skip


def _certificate(scores: Scores, methods: list[str]) -> Table:
    """Return the regrets of some methods: one row for each problem and factor of its scaled loss."""
    rows = [
        [
            problem.name,
            f"× {factor:g}",
            *(tables.interval_cell(scores.regret(problem, method, factor), 100) for method in methods),
        ]
        for problem in scores.problems
        for factor in sorted(FACTORS)
    ]
    return Table(["problem", "one loss", *methods], rows)


def _best(scores: list[Score], least: float, most: float) -> list[Score]:
    """Return the plain mean, and the first methods that precede it and whose time is in a range."""
    plain = next(score for score in scores if score.method == PLAIN)
    before = scores[: scores.index(plain)]
    return [plain, *[score for score in before if least <= score.time < most][:DRAWN]]


def _table(table: Table) -> list[str]:
    return [table.markdown(), "", *(f"{note}\n" for note in table.notes)]
