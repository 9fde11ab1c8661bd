"""The protocol: the runs of a row, its learning rate by validation, and several rows at the same time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from gradhomog.experiments.results.runs import PLAIN, SINGLE
from gradhomog.experiments.run_file.method_lists import EQUAL_NORMS
from gradhomog.experiments.suite.problems import GIVEN, STATIC, SuiteProblem
from gradhomog.experiments.suite.training import SuiteRun, train
from gradhomog.registry import installed
from gradhomog.step.pipelines import pipeline

BASELINES = (PLAIN, STATIC, SINGLE)
"""The rows in every table: the plain mean, tuned static weights, and each task alone where it exists."""

LOGARITHMS = 'scale_invariant(scale="paper")'
"""The sum of the logarithms of the losses: Adam reads the length of its gradient, which other scales change."""

WITHOUT_ROW = ("torchjd", "autoscale")
"""A homogenizer that calls another library, and the one that the preset `auto` consists of."""


def built_in_methods() -> list[str]:
    """The baselines, and every installed homogenizer of gradhomog that acts on losses, norms, Gramians or rows."""
    own = [info.name for info in installed().list("homogenizers") if info.distribution == "gradhomog"]
    chosen = [name for name in own if name not in (STATIC, *WITHOUT_ROW) and _acts_on_rows(name)]
    return [*BASELINES, *chosen, EQUAL_NORMS, LOGARITHMS]


def method_names(texts: Sequence[str]) -> list[str]:
    """The names of the rows of these pipelines.

    Raises:
        GradhomogError: a text is not a pipeline.
    """
    for text in texts:
        if text not in BASELINES:
            pipeline(text)
    return list(dict.fromkeys(PLAIN if text.strip() == "none" else text for text in texts))


def _acts_on_rows(name: str) -> bool:
    made = pipeline(name)
    reads = {need for member in made.members for need in member.needs}
    in_network = any(member.before_rows or member.homogenizer.overrides("begin") for member in made.members)
    return not in_network and not reads & {"features", "kernel_traces"}


def compute_row(problem: SuiteProblem, method: str) -> list[SuiteRun]:
    """Train a method with every factor and seed, with the learning rate of the lowest validation error.

    The rate is selected with the first seed at the given losses; for static weights, with each weight of the grid.
    """
    runs: list[SuiteRun] = []
    rate = math.nan
    for factor in problem.factors(method):
        done: dict[int, SuiteRun] = {}
        if method == STATIC or factor == GIVEN:
            first = problem.seeds[0]
            trials = [train(problem, method, first, rate, factor) for rate in problem.rates]
            best = min(trials, key=lambda trial: trial.validation[-1])
            rate, done = best.rate, {first: best}
        runs += [done.get(seed) or train(problem, method, seed, rate, factor) for seed in problem.seeds]
    return runs


def compute_rows(
    rows: Sequence[tuple[SuiteProblem, str]], jobs: int, finished: Callable[[list[SuiteRun]], None]
) -> None:
    """Compute rows in `jobs` processes, 0: one per core; `finished` receives each in the order in which they end."""
    from joblib import cpu_count

    from gradhomog.experiments.execution.executors.local import Processes

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # otherwise the profiler warns once in each process
    calls = [partial(compute_row, problem, method) for problem, method in rows]
    with closing(Processes()) as processes:
        for runs in (call() for call in calls) if jobs == 1 else processes.run(calls, jobs or cpu_count()):
            finished(runs)
