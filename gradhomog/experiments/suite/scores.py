"""Scores of methods over the suite: regret, robustness and rank, and comparisons with the plain mean."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradhomog.experiments.analysis.statistics import SIGNIFICANCE, Interval, holm, mean_interval, paired_test
from gradhomog.experiments.runs import PLAIN
from gradhomog.experiments.suite.problems import CHECKPOINTS, FACTORS, GIVEN, STATIC, SuiteProblem
from gradhomog.experiments.suite.protocol import SuiteRun
from gradhomog.experiments.suite.row_files import Results, by_factor, is_current

RESAMPLES = 1000
"""Bootstrap samples of the problems for the interval of a rank."""


@dataclass(frozen=True)
class Score:
    """A method over the problems where it was run.

    Attributes:
        problems: their number.
        regret, worst_regret: median and largest regret at the given losses.
        misscaled, worst_misscaled: median and largest, over the problems, of its largest regret over the factors of the
            scaled loss; NaN for methods without misscaled rows.
        better, worse: number of problems where its error at the given losses is lower and higher than that of the plain
            mean, by paired t tests after Holm's correction; where a run failed, it is worse.
        rank: mean rank at the given losses among the methods of all problems, with its bootstrap interval.
        time: geometric mean of the ratio of its time to that of the plain mean, over problems where a run ended.
        memory: median of the ratio of the peak memory of a step to that of the plain mean, over the same problems.
        at_plain_time: median regret after the processor time of the plain mean.
        failures: number of runs that ended with an error.
        outdated: number of problems whose rows were computed with another source of the method, or other versions.
    """

    method: str
    problems: int
    regret: float
    worst_regret: float
    misscaled: float
    worst_misscaled: float
    better: int
    worse: int
    rank: tuple[float, float, float]
    time: float
    memory: float
    at_plain_time: float
    failures: int
    outdated: int


@dataclass(frozen=True)
class ProblemScore:
    """A method in one problem at the given losses: its error, and the difference to the plain mean with its p value.

    `regrets` has those at the factors of the loss with runs.
    """

    method: str
    error: Interval
    difference: Interval
    p_value: float
    regrets: dict[float, Interval]
    time: float
    memory: float


class Scores:
    """The scores of all methods of some results on some problems.

    The regret of a method is (e − e*) / ē*, with its test errors e and those e* of the best static weights, paired by
    seed: the weights of the grid with the lowest mean validation error. 0 is as good as tuned weights; 1, twice the
    error; infinite, a run that failed, or an error above 0 where that of the weights is 0.
    """

    def __init__(self, results: Results, problems: Sequence[SuiteProblem]) -> None:
        self.problems = [p for p in problems if (p.name, PLAIN) in results and (p.name, STATIC) in results]
        self._runs = {
            row: by_factor(runs) for problem in self.problems for row, runs in results.items() if row[0] == problem.name
        }

    def runs(self, problem: SuiteProblem, method: str, factor: float = GIVEN) -> list[SuiteRun]:
        """The runs of a cell in the order of their seeds; none if the protocol has none."""
        if method == STATIC:
            return self.best_static(problem) if factor == GIVEN else []
        return self._runs.get((problem.name, method), {}).get(factor, [])

    @functools.cache  # noqa: B019, an object is made once per command
    def best_static(self, problem: SuiteProblem) -> list[SuiteRun]:
        """The runs of the static weights with the lowest mean validation error."""
        grid = self._runs[problem.name, STATIC].values()
        return min(grid, key=lambda runs: math.fsum(run.validation[-1] for run in runs))

    def methods(self, problem: SuiteProblem) -> list[str]:
        return [method for name, method in self._runs if name == problem.name]

    def regret(self, problem: SuiteProblem, method: str, factor: float = GIVEN) -> Interval | None:
        """The regret of a cell with its interval over seeds; None without runs."""
        runs = self.runs(problem, method, factor)
        return self._regret(problem, [run.error for run in runs]) if runs else None

    def _regret(self, problem: SuiteProblem, errors: Sequence[float]) -> Interval:
        best = [run.error for run in self.best_static(problem)]
        mean = math.fsum(best) / len(best)
        differences = [error - other for error, other in zip(errors, best, strict=True)]
        return _finite_interval([gap / mean if mean else math.inf if gap else 0.0 for gap in differences])

    def scores(self) -> list[Score]:
        """The score of each method: static weights first, then by the median regret with misscaled losses."""
        rows: dict[str, list[tuple[SuiteProblem, ProblemScore]]] = {method: [] for _, method in self._runs}
        for problem in self.problems:
            for row in self.comparisons(problem):
                rows[row.method].append((problem, row))
        ranks = self._ranks(list(rows))
        return sorted((self._score(method, rows[method], ranks.get(method)) for method in rows), key=_order)

    def _score(
        self, method: str, rows: Sequence[tuple[SuiteProblem, ProblemScore]], rank: tuple[float, float, float] | None
    ) -> Score:
        given = [row.regrets[GIVEN].mean for _, row in rows]
        largest = [
            max(regret.mean for regret in row.regrets.values()) if len(row.regrets) == len(FACTORS) else math.nan
            for _, row in rows
        ]
        signs = [np.sign(row.difference.mean) for _, row in rows if row.p_value < SIGNIFICANCE]
        return Score(
            method,
            len(rows),
            regret=float(np.median(given)),
            worst_regret=max(given),
            misscaled=float(np.median(largest)),
            worst_misscaled=float(np.max(largest)),
            better=signs.count(-1),
            worse=signs.count(1) + sum(math.isinf(row.error.mean) for _, row in rows),
            rank=rank or (math.nan,) * 3,
            time=self.mean_time(method),
            memory=_summary(np.median, [row.memory for _, row in rows]),
            at_plain_time=float(np.median([self._regret_at_plain_time(problem, method) for problem, _ in rows])),
            failures=sum(
                bool(run.failure) for problem, _ in rows for f in FACTORS for run in self.runs(problem, method, f)
            ),
            outdated=sum(self.is_outdated(problem, method) for problem, _ in rows),
        )

    def is_outdated(self, problem: SuiteProblem, method: str) -> bool:
        """True if a row was computed with another source of the method, or other versions, than the present ones."""
        return not is_current(problem, self.runs(problem, method))

    def mean_time(self, method: str) -> float:
        """The geometric mean of its times relative to the plain mean, over the problems where a run was complete."""
        problems = [problem for problem in self.problems if (problem.name, method) in self._runs]
        return math.exp(_summary(np.mean, [math.log(self.time(problem, method)) for problem in problems]))

    def time(self, problem: SuiteProblem, method: str) -> float:
        """The mean time of a complete run at the given losses over that of the plain mean; NaN if all runs failed."""
        own, plain = ([run.seconds for run in self.runs(problem, name) if not run.failure] for name in (method, PLAIN))
        return (sum(own) / len(own)) / (sum(plain) / len(plain)) if own and plain else math.nan

    def memory(self, problem: SuiteProblem, method: str) -> float:
        """The peak memory of a step over that of the plain mean."""
        own, plain = (self.runs(problem, name)[0].memory for name in (method, PLAIN))
        return own / plain if own and plain else math.nan

    def _regret_at_plain_time(self, problem: SuiteProblem, method: str) -> float:
        share = 1 / self.time(problem, method)
        # Interpolated between checkpoints; at least that of the first.
        errors = [float(np.interp(share, CHECKPOINTS, run.errors)) if math.isfinite(run.error) else math.inf
                  for run in self.runs(problem, method)]  # fmt: skip
        return self._regret(problem, errors).mean

    def comparisons(self, problem: SuiteProblem) -> list[ProblemScore]:
        """All methods of a problem, those with the lowest error first.

        p values are Holm's; NaN with one seed, and 1 with a failed run, which is no difference by chance.
        """
        rows = [self._problem_score(problem, method) for method in self.methods(problem)]
        adjusted = holm([row.p_value for row in rows])
        rows = [dataclasses.replace(row, p_value=p_value) for row, p_value in zip(rows, adjusted, strict=True)]
        return sorted(rows, key=lambda row: row.error.mean)

    def _problem_score(self, problem: SuiteProblem, method: str) -> ProblemScore:
        """The score of a method in one problem, without correction for multiple comparisons."""
        errors, plain = ([run.error for run in self.runs(problem, name)] for name in (method, PLAIN))
        test, error = paired_test(errors, plain), _finite_interval(errors)
        p_value = 1.0 if math.isinf(error.mean) and len(errors) > 1 else test.p_value
        return ProblemScore(
            method,
            error,
            test.difference,
            math.nan if method == PLAIN else p_value,
            {factor: regret for factor in FACTORS if (regret := self.regret(problem, method, factor))},
            self.time(problem, method),
            self.memory(problem, method),
        )

    def _ranks(self, methods: Sequence[str]) -> dict[str, tuple[float, float, float]]:
        """The mean rank of the methods that all problems have, with a bootstrap interval over the problems."""
        names = [problem.name for problem in self.problems]
        common = [method for method in methods if all((name, method) in self._runs for name in names)]
        if not common:
            return {}
        from scipy.stats import rankdata

        errors = np.array([
            [np.mean([run.error for run in self.runs(problem, method)]) for method in common]
            for problem in self.problems
        ])  # fmt: skip
        ranks = rankdata(errors, axis=1)
        drawn = np.random.default_rng(0).integers(len(ranks), size=(RESAMPLES, len(ranks)))
        low, high = np.quantile(ranks[drawn].mean(axis=1), (0.025, 0.975), axis=0)
        return {
            method: (float(mean), float(lowest), float(highest))
            for method, mean, lowest, highest in zip(common, ranks.mean(axis=0), low, high, strict=True)
        }


def _order(score: Score) -> tuple[bool, float, float]:
    """Static weights first; methods without misscaled rows last."""
    known = not math.isnan(score.misscaled)
    return score.method != STATIC, score.misscaled if known else math.inf, score.regret


def _summary(function: Callable[[list[float]], Any], values: Sequence[float]) -> float:
    """The mean or median of the known values; NaN without any."""
    known = [value for value in values if not math.isnan(value)]
    return float(function(known)) if known else math.nan


def _finite_interval(values: Sequence[float]) -> Interval:
    """The mean with its interval; infinite if a run failed."""
    return mean_interval(values) if all(map(math.isfinite, values)) else Interval(math.inf, math.nan, len(values))
