"""One training of the suite, in this process: the error at checkpoints, the time and the memory of its steps."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gradhomog.errors import GradhomogError
from gradhomog.experiments.analysis.metrics import metric
from gradhomog.experiments.execution.environment import machine, threads
from gradhomog.experiments.profiling.harness import peak_bytes
from gradhomog.experiments.results.runs import Run
from gradhomog.experiments.suite.problems import CHECKPOINTS, SuiteProblem
from gradhomog.experiments.training.trainable import Trainable
from gradhomog.experiments.training.trainer import make_optimizer, make_trainable
from gradhomog.learners.results import Evaluation

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

    def error_after(self, share: float) -> float:
        """The test error after a share of the steps, interpolated between checkpoints; at least that of the first."""
        return float(np.interp(share, CHECKPOINTS, self.errors)) if math.isfinite(self.errors[-1]) else math.inf

    def to_json(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        for name in ("validation", "errors"):
            content[name] = [_stored(value) for value in content[name]]
        return content | {"seconds": _stored(self.seconds)}

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
    config = problem.config
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, outer_lr=rate))
    run = Run(config.learners[0], problem.pipeline(method, factor), seed)
    config = config.for_run(run.learner, run.homogenizers, seed)
    marks = {max(1, round(share * problem.steps)) for share in CHECKPOINTS}
    seconds, memory, failure = 0.0, 0, ""
    validation, errors = [math.inf], [math.inf]
    trainable = make_trainable(config, run)
    optimizer = make_optimizer(config, trainable)
    try:
        for index in range(problem.steps):
            if index == problem.steps // 2 and seed == problem.seeds[0]:  # states of methods exist by then
                memory = peak_bytes(lambda: trainable.step(problem.steps // 2, optimizer, inspect=False))
                continue
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
        problem.name, method, factor, seed, rate, (*validation[1:], *missing), (*errors[1:], *missing), seconds,
        memory, problem.digest, problem.code(method), processor(), failure,
    )  # fmt: skip


def processor() -> str:
    """The processor and its instruction set, on which rounding depends."""
    return f"{machine()['processor']} {torch.backends.cpu.get_cpu_capability()}"


def _error(trainable: Trainable, evaluation: Evaluation, problem: SuiteProblem) -> float:
    """The mean over the tasks of the distance from the best score; infinite if it is not finite."""
    best = float(metric(trainable.metric).higher_is_better) if problem.best is None else problem.best
    error = abs(best - evaluation.mean)
    return max(error, problem.tolerance) if math.isfinite(error) else math.inf


def _stored(value: float) -> float | None:
    """A number with the digits that are stored; None for infinity, which JSON does not have."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
