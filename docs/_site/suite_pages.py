"""The leaderboard of the suite and a page for each of its problems, from the results in the package."""

import math
from pathlib import Path

from _site import plugin_tables
from gradhomog.cli import list_
from gradhomog.experiments import report
from gradhomog.experiments.results.runs import PLAIN
from gradhomog.experiments.suite import figures, tables
from gradhomog.experiments.suite.problems import FACTORS, problems
from gradhomog.experiments.suite.results import stored_results
from gradhomog.experiments.suite.scores import Score, Scores
from gradhomog.table import NOTHING, Cell, Table

DRAWN = 5
"""Number of methods in the figure: the first ones of the table, beside the plain mean."""

AUTO, COMPARED = "auto", 3
"""The method of the certificate, and the number of other methods in it."""

NOTES = """\
Regret is the error relative to that of the best of 13 weights of one task, in percent. *Wrong weights* is the largest
of three regrets of a problem: at the given losses, and with the loss of one task times 0.01 and 100; its median and
largest value over the problems. *Better, worse*: problems with a lower and a higher error than the plain mean. *Time*
of a step relative to the plain mean. A click on a header sorts. `config` and `dcgd` are equal for two tasks, which most
problems have; so are `geometric_mean` and `scale_invariant`.
"""


def pages(source: Path) -> dict[str, str]:
    """Return the pages by path; write the figure beside them."""
    scores = Scores(stored_results(), list(problems().values()))
    found = scores.scores()
    folder = source / "results" / "suite"
    folder.mkdir(parents=True, exist_ok=True)
    figures.draw(
        scores, [score.method for score in found if not math.isnan(score.misscaled)][:DRAWN], folder / "regret.svg"
    )
    leaderboard = [
        "# Leaderboard of the suite", "", "`gradhomog suite` prints this table with more columns; `gradhomog suite "
        "my_method` adds your row. [Reading](../suite.md).", "", *_leaderboard(found),
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
    others = [score.method for score in measured if score.method not in (PLAIN, AUTO)][:COMPARED]
    return {
        "results/suite/leaderboard.md": "\n".join(leaderboard),
        "methods/_certificate.md": _certificate(scores, [AUTO, PLAIN, *others]).markdown(), **by_problem,
    }  # fmt: skip


def _certificate(scores: Scores, methods: list[str]) -> Table:
    """Return the regrets of some methods: one row for each problem and factor of its scaled loss."""
    rows = [
        [
            problem.name,
            f"× {factor:g}",
            *(tables.interval(scores.regret(problem, method, factor), 100) for method in methods),
        ]
        for problem in scores.problems
        for factor in sorted(FACTORS)
    ]
    return Table(["problem", "one loss", *methods], rows)


def _leaderboard(scores: list[Score]) -> list[str]:
    """A sortable table with few columns, whose rows do not break."""
    header = ["method", "tier", "wrong weights %", "largest %", "given losses %", "better, worse", "time"]
    rows: list[list[Cell | str]] = [
        [
            score.method,
            _tier(score.method),
            Cell(tables.percent(score.misscaled), score.misscaled),
            Cell(tables.percent(score.worst_misscaled), score.worst_misscaled),
            Cell(tables.percent(score.regret), score.regret),
            Cell(f"{score.better}, {score.worse}", score.better - score.worse),
            Cell(f"{score.time:.2f}", score.time),
        ]
        for score in scores
    ]
    script = Path(report.__file__).with_name("templates").joinpath("sort.js").read_text(encoding="utf-8")
    table = Table(header, rows, sticky=0).html("Regret of methods over the problems of the suite")
    return [
        *("```{raw} html", '<div class="leaderboard" tabindex="0">', table, "</div>"),
        *("<script>", 'addEventListener("DOMContentLoaded", () => {', script, "});", "</script>", "```", "", NOTES),
    ]


def _tier(method: str) -> str:
    """The tier of a row of the suite: `reweight` is recommended with the options of its row only."""
    name = method.partition("(")[0]
    if tier := {info.name: list_.tier(info) for info, _ in plugin_tables.built_in("homogenizers")}.get(name):
        recommended = list_.tiers()["recommended"].get(name)
        return tier if recommended in (None, method) else "catalogue"
    return NOTHING


def _table(table: Table) -> list[str]:
    return [table.markdown(), "", *(f"{note}\n" for note in table.notes)]
