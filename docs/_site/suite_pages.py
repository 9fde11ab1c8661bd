"""The leaderboard of the suite and a page for each of its problems, from the results in the package."""

import math
from pathlib import Path

from _site import plugin_tables, suite_figure
from gradhomog.cli import list_
from gradhomog.experiments.suite import tables
from gradhomog.experiments.suite.problems import problems
from gradhomog.experiments.suite.row_files import stored_results
from gradhomog.experiments.suite.scores import Score, Scores
from gradhomog.table import NOTHING, Cell, Table

DRAWN = 5
"""Number of methods in the figure: the first ones of the table, beside the plain mean."""

NOTE = """\
The [columns](../../guide/suite.md#the-scores): median and largest regret at wrong weights, median regret at the given
losses, problems with a lower and a higher error than the plain mean, and time of a step. A click on a header sorts.
`config` and `dcgd` are equal for two tasks, which most problems have; so are `geometric_mean` and `scale_invariant`.
"""


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
        "# Leaderboard of the suite", "", "`gradhomog suite` prints this table with more columns; `gradhomog suite "
        "my_method` adds your row. [Reading](../suite.md).", "", _leaderboard(found), "", NOTE,
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
    return {"results/suite/leaderboard.md": "\n".join(leaderboard), **by_problem}


def _leaderboard(scores: list[Score]) -> str:
    """A sortable table with few columns, whose rows do not break."""
    tiers = {info.name: list_.tier(info) for info, _ in plugin_tables.built_in("homogenizers")}
    recommended = list_.tiers()["recommended"]
    tiers |= dict.fromkeys(recommended, "catalogue") | dict.fromkeys(recommended.values(), "recommended")
    header = ["method", "tier", "wrong weights %", "largest %", "given losses %", "better, worse", "time"]
    rows: list[list[Cell | str]] = [
        [
            score.method,
            tiers.get(score.method, NOTHING),
            Cell(tables.percent(score.misscaled), score.misscaled),
            Cell(tables.percent(score.worst_misscaled), score.worst_misscaled),
            Cell(tables.percent(score.regret), score.regret),
            Cell(f"{score.better}, {score.worse}", score.better - score.worse),
            Cell(f"{score.time:.2f}", score.time),
        ]
        for score in scores
    ]
    return (
        f'```{{raw}} html\n<div class="leaderboard" tabindex="0">\n{Table(header, rows, sticky=0).html()}\n</div>\n```'
    )


def _table(table: Table) -> list[str]:
    return [table.markdown(), "", *(f"{note}\n" for note in table.notes)]
