"""The tables of the suite: methods over all problems, methods in a problem, agreement of rows computed again."""

import math
from collections.abc import Sequence

from gradhomog.experiments.analysis.statistics import SIGNIFICANCE, Interval, mean_interval
from gradhomog.experiments.suite.problems import FACTORS, GIVEN, SuiteProblem
from gradhomog.experiments.suite.row_files import Results, by_factor
from gradhomog.experiments.suite.scores import Comparison, Score, Scores
from gradhomog.table import NOTHING, Column, Table

NOTES = (
    "regret: error relative to that of the best of 13 weights of one task, in percent; 0 is as good. Median and worst",
    "over the problems, at the given losses. wrong weights: the largest of three regrets of a problem: at the given",
    "losses, and with the loss of that task times 0.01 and 100. at plain's time: after the time of the plain mean.",
    "+ −: problems with a lower and a higher error than the plain mean (paired t tests, Holm in each problem, 0.05).",
    "rank: mean over problems at the given losses, 95 % bootstrap interval. time, memory: of a step, × plain mean.",
)


def leaderboard(scores: Sequence[Score]) -> Table:
    """One row per method."""
    return Table.of(
        [
            Column("method", lambda row: row.method, lambda row: row.method),
            Column("regret %", lambda row: percent(row.regret), lambda row: row.regret),
            Column("worst", lambda row: percent(row.worst_regret), lambda row: row.worst_regret),
            Column("wrong weights %", lambda row: percent(row.misscaled), lambda row: row.misscaled),
            Column("worst", lambda row: percent(row.worst_misscaled), lambda row: row.worst_misscaled),
            Column("at plain's time", lambda row: percent(row.at_plain_time), lambda row: row.at_plain_time),
            Column("+ −", lambda row: f"{row.better} {row.worse}", lambda row: row.better - row.worse),
            Column("rank", _rank, lambda row: row.rank[0]),
            Column("time", lambda row: _ratio(row.time), lambda row: row.time),
            Column("memory", lambda row: _ratio(row.memory), lambda row: row.memory),
            Column("problems", _count, lambda row: row.problems),
        ],
        scores,
        NOTES,
        sticky=0,
    )


def problem_table(scores: Scores, problem: SuiteProblem) -> Table:
    """One row per method, those with the lowest error at the given losses first."""
    columns: list[Column[Comparison]] = [
        Column("method", lambda row: row.method, lambda row: row.method),
        Column("error", lambda row: interval(row.error), lambda row: row.error.mean),
        Column("difference to plain", _difference, lambda row: row.difference.mean),
    ]
    for factor in sorted(FACTORS):
        columns.append(
            Column(
                "regret %" if factor == GIVEN else f"× {factor:g}",
                lambda row, factor=factor: interval(row.regrets.get(factor), 100),  # type: ignore[misc]
                lambda row, factor=factor: row.regrets[factor].mean if factor in row.regrets else None,  # type: ignore[misc]
            )
        )
    columns += [
        Column("time", lambda row: _ratio(row.time), lambda row: row.time),
        Column("memory", lambda row: _ratio(row.memory), lambda row: row.memory),
    ]
    best = scores.best_static(problem)[0].factor
    seeds = "1 seed" if len(problem.seeds) == 1 else f"{len(problem.seeds)} seeds"
    rates = ", ".join(f"{rate:g}" for rate in problem.rates)
    notes = (
        f"{problem.question} {problem.steps} steps, {seeds}; learning rate by validation from {rates}.",
        f"Best static weight of `{problem.scaled_task}`: {best:.3g}, of 13 from 0.001 to 1000. "
        "*: differs from the plain mean (Holm, 0.05).",
    )
    return Table.of(columns, scores.comparisons(problem), notes, sticky=0)


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


def percent(value: float) -> str:
    """A regret in percent."""
    if math.isnan(value):
        return NOTHING
    return f"{100 * value:+.0f}" if math.isfinite(value) else "failed"


def interval(value: Interval | None, factor: float = 1.0) -> str:
    """A mean with its interval, to three digits."""
    if value is None:
        return NOTHING
    if not math.isfinite(value.mean):
        return "failed"
    half = f" ± {factor * value.half_width:.2g}" if math.isfinite(value.half_width) else ""
    return (f"{factor * value.mean:+.0f}" if factor != 1 else f"{value.mean:.3g}") + half


def _ratio(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.2f}"


def _difference(row: Comparison) -> str:
    if not math.isfinite(row.difference.mean):
        return NOTHING
    return f"{row.difference.mean:+.2g}" + (" *" if row.p_value < SIGNIFICANCE else "")


def _rank(row: Score) -> str:
    mean, low, high = row.rank
    return NOTHING if math.isnan(mean) else f"{mean:.1f} ({low:.1f}–{high:.1f})"


def _count(row: Score) -> str:
    return f"{row.problems}" + (f", {row.failures} runs failed" if row.failures else "")
