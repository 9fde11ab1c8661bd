"""The tables of the suite: methods over all problems, methods in a problem, agreement of rows computed again."""

import math
from collections.abc import Sequence

from gradhomog.experiments.analysis.statistics import SIGNIFICANCE, Interval, mean_interval
from gradhomog.experiments.report.tables import number_cell
from gradhomog.experiments.suite.problems import FACTORS, GIVEN, SuiteProblem
from gradhomog.experiments.suite.row_files import Results, by_factor
from gradhomog.experiments.suite.scores import ProblemScore, Score, Scores
from gradhomog.table import NOTHING, Cell, Table

NOTES = (
    "regret: error relative to that of the best of 13 weights of one task, in percent; 0 is as good. Median and worst",
    "over the problems, at the given losses. wrong weights: the largest of three regrets of a problem: at the given",
    "losses, and with the loss of that task times 0.01 and 100. at plain's time: after the time of the plain mean.",
    "+ −: problems with a lower and a higher error than the plain mean (paired t tests, Holm in each problem, 0.05).",
    "rank: mean over problems at the given losses, 95 % bootstrap interval. time, memory: of a step, × plain mean.",
    "∞: a run failed, or the best weights have the error 0.",
)

OUTDATED = "‡: rows of another source of the method, or of other versions, than the present ones; see --rerun."


def leaderboard(scores: Sequence[Score]) -> Table:
    """One row per method."""
    header = [
        "method", "regret %", "worst", "wrong weights %", "worst", "at plain's time", "+ −", "rank", "time", "memory",
        "problems",
    ]  # fmt: skip
    rows: list[list[Cell | str]] = []
    for row in scores:
        regrets = (row.regret, row.worst_regret, row.misscaled, row.worst_misscaled, row.at_plain_time)
        mean, low, high = row.rank
        failed = f", {row.failures} runs failed" if row.failures else ""
        rows.append([
            _method_cell(row.method, row.outdated),
            *(number_cell(regret, percent) for regret in regrets),
            Cell(f"{row.better} {row.worse}", row.better - row.worse),
            number_cell(mean, f"{{:.1f}} ({low:.1f}–{high:.1f})".format),
            number_cell(row.time, "{:.2f}".format),
            number_cell(row.memory, "{:.2f}".format),
            Cell(f"{row.problems}{failed}", row.problems),
        ])  # fmt: skip
    outdated = sum(row.outdated for row in scores)
    counted = f" Here {outdated} of {sum(row.problems for row in scores)} rows."
    return Table(header, rows, (*NOTES, OUTDATED + counted) if outdated else NOTES, sticky=0)


def problem_table(scores: Scores, problem: SuiteProblem) -> Table:
    """One row per method, those with the lowest error at the given losses first."""
    factors = sorted(FACTORS)
    regrets = ["regret %" if factor == GIVEN else f"× {factor:g}" for factor in factors]
    rows: list[list[Cell | str]] = [
        [
            _method_cell(row.method, scores.is_outdated(problem, row.method)),
            interval_cell(row.error),
            _difference_cell(row),
            *(interval_cell(row.regrets.get(factor), 100) for factor in factors),
            number_cell(row.time, "{:.2f}".format),
            number_cell(row.memory, "{:.2f}".format),
        ]
        for row in scores.comparisons(problem)
    ]
    best = scores.best_static(problem)[0].factor
    seeds = "1 seed" if len(problem.seeds) == 1 else f"{len(problem.seeds)} seeds"
    rates = ", ".join(f"{rate:g}" for rate in problem.rates)
    notes = (
        f"{problem.question} {problem.steps} steps, {seeds}; learning rate by validation from {rates}.",
        f"Best static weight of `{problem.scaled_task}`: {best:.3g}, of 13 from 0.001 to 1000. "
        "*: differs from the plain mean (Holm, 0.05).",
        *([OUTDATED] if any(scores.is_outdated(problem, method) for method in scores.methods(problem)) else []),
    )
    return Table(["method", "error", "difference to plain", *regrets, "time", "memory"], rows, notes, sticky=0)


def agreement(stored: Results, computed: Results) -> Table:
    """One row per method that both have: how many of its cells are equal, and how many within the stored interval."""
    counts: dict[str, list[int]] = {}
    for row, runs in computed.items():
        if row not in stored:
            continue
        count = counts.setdefault(row[1], [0, 0, 0])
        before = by_factor(stored[row])
        for factor, repeated in by_factor(runs).items():
            old, new = ([run.error for run in cell] for cell in (before[factor], repeated))
            count[0] += 1
            count[1] += old == new
            count[2] += old == new or _within(old, new)
    rows = [[method, *map(str, count)] for method, count in counts.items()]
    notes = (
        "A cell is a problem and a factor of the loss. Within: the new mean test error is in the 95 % interval of the "
        "stored one. Other processors round differently, and hundreds of steps amplify it.",
    )
    return Table(["method", "cells", "equal", "within"], rows, notes, empty="No stored row was computed again.")


def _within(old: Sequence[float], new: Sequence[float]) -> bool:
    interval, mean = mean_interval(old), math.fsum(new) / len(new)
    return interval.low <= mean <= interval.high


def _method_cell(method: str, outdated: object) -> Cell:
    return Cell(f"{method} ‡" if outdated else method, method)


def percent(value: float) -> str:
    """A regret in percent."""
    if math.isnan(value):
        return NOTHING
    return f"{100 * value:+.0f}" if math.isfinite(value) else "∞"


def interval_cell(value: Interval | None, factor: float = 1.0) -> Cell:
    """The cell of a mean with its interval, to three digits."""
    if value is None or not math.isfinite(value.mean):
        return Cell(NOTHING) if value is None else Cell("failed" if factor == 1 else "∞", value.mean)
    half = f" ± {factor * value.half_width:.2g}" if math.isfinite(value.half_width) else ""
    return Cell((f"{factor * value.mean:+.0f}" if factor != 1 else f"{value.mean:.3g}") + half, value.mean)


def _difference_cell(row: ProblemScore) -> Cell:
    mean = row.difference.mean
    mark = " *" if row.p_value < SIGNIFICANCE else ""
    return Cell(f"{mean:+.2g}{mark}" if math.isfinite(mean) else NOTHING, mean)
