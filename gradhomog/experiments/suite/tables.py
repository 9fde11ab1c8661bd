"""The tables of the suite: one row per method over all problems, and one row per method in a problem."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradhomog.experiments.analysis.statistics import SIGNIFICANCE, Interval
from gradhomog.experiments.suite.problems import SCALES, SuiteProblem
from gradhomog.experiments.suite.scores import Comparison, Score, Scores
from gradhomog.table import NOTHING, Column, Table

NOTES = (
    "regret: error relative to that of the best of 13 static weights, in percent; 0 is as good as tuned weights.",
    "Median and worst over the problems at the given losses; robustness: also with one loss times 0.01 and times 100.",
    "+ −: problems with a lower and a higher error than the plain mean (paired t tests, Holm in each problem, 0.05).",
    "rank: mean over problems at the given losses, 95 % bootstrap interval. time, memory: of a step, × plain mean.",
    "at plain's time: median regret after the processor time that the plain mean takes for all its steps.",
)


def leaderboard(scores: Sequence[Score]) -> Table:
    """One row per method."""
    return Table.of(
        [
            Column("method", lambda row: row.method, lambda row: row.method),
            Column("regret %", lambda row: percent(row.regret), lambda row: row.regret),
            Column("worst", lambda row: percent(row.worst_regret), lambda row: row.worst_regret),
            Column("robustness %", lambda row: percent(row.robustness), lambda row: row.robustness),
            Column("worst", lambda row: percent(row.worst_robustness), lambda row: row.worst_robustness),
            Column("at plain's time", lambda row: percent(row.at_plain_time), lambda row: row.at_plain_time),
            Column("+ −", lambda row: f"{row.better} {row.worse}", lambda row: row.better - row.worse),
            Column("rank", _rank, lambda row: row.rank[0]),
            Column("time", lambda row: f"{row.time:.2f}", lambda row: row.time),
            Column("memory", lambda row: f"{row.memory:.2f}", lambda row: row.memory),
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
    for scale in sorted(SCALES):
        columns.append(
            Column(
                "regret %" if scale == 1 else f"× {scale:g}",
                lambda row, scale=scale: interval(row.regrets.get(scale), 100),  # type: ignore[misc]
                lambda row, scale=scale: row.regrets[scale].mean if scale in row.regrets else None,  # type: ignore[misc]
            )
        )
    columns += [
        Column("time", lambda row: f"{row.time:.2f}", lambda row: row.time),
        Column("memory", lambda row: f"{row.memory:.2f}", lambda row: row.memory),
    ]
    best = scores.best_static(problem)[0].scale
    notes = (
        f"{problem.question} {problem.steps} steps, {len(problem.seeds)} seeds; learning rate by validation from "
        f"{', '.join(f'{rate:g}' for rate in problem.rates)}.",
        f"Best static weight of `{problem.scaled_task}`: {best:.3g}, of 13 from 0.001 to 1000. "
        "*: differs from the plain mean (Holm, 0.05).",
    )
    return Table.of(columns, scores.comparisons(problem), notes, sticky=0)


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


def _difference(row: Comparison) -> str:
    if not math.isfinite(row.difference.mean):
        return NOTHING
    return f"{row.difference.mean:+.2g}" + (" *" if row.p_value < SIGNIFICANCE else "")


def _rank(row: Score) -> str:
    mean, low, high = row.rank
    return NOTHING if math.isnan(mean) else f"{mean:.1f} ({low:.1f}–{high:.1f})"


def _count(row: Score) -> str:
    return f"{row.problems}" + (f", {row.failures} runs failed" if row.failures else "")
