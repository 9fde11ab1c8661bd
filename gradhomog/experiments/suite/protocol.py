"""The protocol: one training with its errors, time and memory; a row with its learning rate; rows in processes."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gradhomog.diagnosis.recommend import EQUAL_NORMS
from gradhomog.errors import GradhomogError
from gradhomog.experiments.environment import machine, threads
from gradhomog.experiments.profiling.harness import peak_bytes
from gradhomog.experiments.runs import PLAIN, SINGLE, Run
from gradhomog.experiments.score_metrics import metric
from gradhomog.experiments.suite.problems import CHECKPOINTS, GIVEN, SELECTING, STATIC, SuiteProblem
from gradhomog.experiments.training.trainer import Trainable, make_optimizer, make_trainable
from gradhomog.learners.results import Evaluation
from gradhomog.registry import installed
from gradhomog.step.pipelines import pipeline

DIGITS = 5
"""Significant digits of stored numbers."""


@dataclass(frozen=True)
class SuiteRun:
    """The record of one training.

    Attributes:
        problem, method, factor, seed: the cell of the table; `factor` as in `SuiteProblem.pipeline`.
        rate: learning rate.
        validation: the lowest validation error up to each checkpoint.
        errors: the test error of the state with that validation error.
        seconds: processor time of the training steps.
        memory: peak bytes that a step allocates.
        digest: that of the problem's settings.
        code: a hash of the source of the method's homogenizers, and of versions.
        processor: see `processor`.
        failure: the error that ended the training; errors from then on are infinite.
    """

    problem: str
    method: str
    factor: float
    seed: int
    rate: float
    validation: tuple[float, ...]
    errors: tuple[float, ...]
    seconds: float
    memory: int
    digest: str
    code: str
    processor: str
    failure: str = ""

    @property
    def error(self) -> float:
        """The test error at the end."""
        return self.errors[-1]

    def to_json(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        for name in ("validation", "errors"):
            content[name] = [value if math.isfinite(value) else None for value in content[name]]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SuiteRun:
        values: dict[str, Any] = {
            key: tuple(math.inf if item is None else item for item in value) if isinstance(value, list) else value
            for key, value in content.items()
        }
        return cls(**values)


@threads(1)
def train(problem: SuiteProblem, method: str, seed: int, rate: float, factor: float) -> SuiteRun:
    """Train and test one method with one seed, learning rate and factor of the loss.

    Raises:
        GradhomogError: the method or the problem cannot be made. An error in a step ends the run, and is recorded.
    """
    marks = {max(1, round(share * problem.steps)) for share in CHECKPOINTS}
    seconds, memory, failure = 0.0, 0, ""
    validation, errors = [math.inf], [math.inf]
    trainable, optimizer = make(problem, method, seed, rate, factor)
    try:
        for index in range(problem.steps):
            if index == problem.steps // 2 and seed == problem.seeds[0]:  # states of methods exist by then
                memory = peak_bytes(lambda: trainable.step(problem.steps // 2, optimizer, inspect=False))
            else:
                start = time.process_time()
                trainable.step(index, optimizer, inspect=False)
                seconds += time.process_time() - start
            if index + 1 in marks:
                found = _error(trainable, trainable.validate(), problem)
                better = found < validation[-1]
                errors.append(_error(trainable, trainable.test([{}]), problem) if better else errors[-1])
                validation.append(found if better else validation[-1])
    except GradhomogError as error:
        failure = str(error)
    missing = [math.inf] * (len(CHECKPOINTS) + 1 - len(errors))
    return SuiteRun(
        problem.name, method, factor, seed, rate, _rounded(*validation[1:], *missing), _rounded(*errors[1:], *missing),
        _rounded(seconds)[0], memory, problem.digest, problem.code(method), processor(), failure,
    )  # fmt: skip


def make(
    problem: SuiteProblem, method: str, seed: int, rate: float, factor: float
) -> tuple[Trainable, torch.optim.Optimizer]:
    """Return the network with its data, and the optimizer, of one training.

    Raises:
        GradhomogError: they cannot be made; for example if a package or the data are missing.
    """
    config = problem.config
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, outer_lr=rate))
    run = Run(config.learners[0], problem.pipeline(method, factor), seed)
    config = config.for_run(run)
    trainable = make_trainable(config, run)
    return trainable, make_optimizer(config, trainable)


def processor() -> str:
    """The processor and its instruction set, on which rounding depends."""
    return f"{machine()['processor']} {torch.backends.cpu.get_cpu_capability()}"


def _error(trainable: Trainable, evaluation: Evaluation, problem: SuiteProblem) -> float:
    """The mean over the tasks of the distance from the best score; infinite if it is not finite."""
    best = float(metric(trainable.metric).higher_is_better) if problem.best is None else problem.best
    error = abs(best - evaluation.mean)
    return max(error, problem.tolerance) if math.isfinite(error) else math.inf


def _rounded(*values: float) -> tuple[float, ...]:
    """Numbers with the digits that are stored, from which a rate is selected when a run ends and when it is read."""
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)


BASELINES = (PLAIN, STATIC, SINGLE)
"""The rows in every table: the plain mean, tuned static weights, and each task alone where it exists."""

LOGARITHMS = 'scale_invariant(scale="paper")'
"""The sum of the logarithms of the losses: Adam reads the length of its gradient, which other scales change."""

WITHOUT_ROW = "peakscale"
"""The homogenizer that the preset `auto` consists of."""


def built_in_methods() -> list[str]:
    """The baselines, and every installed homogenizer of gradhomog that acts on losses, norms, Gramians or rows."""
    own = [info.name for info in installed().list("homogenizers") if info.distribution == "gradhomog"]
    chosen = [name for name in own if name not in (STATIC, WITHOUT_ROW) and _acts_on_rows(name)]
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
    """Train a method with every factor and seed, at the learning rate with the lowest mean validation error.

    The rate is selected at the given losses, for static weights with each weight of the grid, by the first `SELECTING`
    seeds. Their runs at the other rates are part of the row.
    """
    runs: list[SuiteRun] = []
    rate = math.nan
    for factor in problem.factors(method):
        trials: list[SuiteRun] = []
        if method == STATIC or factor == GIVEN:
            selecting = problem.seeds[:SELECTING]
            trials = [train(problem, method, seed, rate, factor) for rate in problem.rates for seed in selecting]
            rate = selected_rate(trials)
        done = {trial.seed for trial in trials}
        runs += trials
        runs += [train(problem, method, seed, rate, factor) for seed in problem.seeds if seed not in done]
    return runs


def selected_rate(runs: Sequence[SuiteRun]) -> float:
    """The learning rate with the lowest mean validation error over the seeds that all rates have."""
    by_rate: dict[float, dict[int, SuiteRun]] = {}
    for run in runs:
        by_rate.setdefault(run.rate, {})[run.seed] = run
    common = set.intersection(*(set(trials) for trials in by_rate.values()))
    return min(by_rate, key=lambda rate: math.fsum(by_rate[rate][seed].validation[-1] for seed in common))


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
