"""Dry run: two steps of every method before any run starts, to reject invalid combinations and estimate the time."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gradhomog.errors import ConfigError, GradhomogError
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.execution.threads import threads
from gradhomog.experiments.results.plan import Method, Run
from gradhomog.experiments.training import trainer
from gradhomog.experiments.training.trainable import Trainable


@dataclass(frozen=True)
class Estimate:
    """Estimated processor time of a comparison in seconds, from the times of second steps and of one validation."""

    seconds: float


def dry_run(
    config: Config, rows: Sequence[Method], progress: Callable[[Mapping[str, Any]], None] = lambda record: None
) -> Estimate:
    """Take the first two steps of every pipeline of a comparison, each on a new trainable that is then discarded.

    A homogenizer checks its requirements on the network, its features and its losses only within a step. Writes no
    file. Calls `progress` after each pipeline with the record `dry_run`.

    Raises:
        ConfigError: a step raises an error of gradhomog; lists all such pipelines, with the reasons.
    """
    failures: dict[str, list[str]] = {}  # reason -> pipelines: several pipelines may fail for the same reason
    seed, seeds = config.seed_list[0], len(config.seed_list)
    # Every candidate of a tuned method runs with the first seed; one of them runs with the other seeds.
    counts = {
        Run(row.learner, text, seed): 1 + (seeds - 1) / len(row.candidates) for row in rows for text in row.candidates
    }
    steps, evaluation = 0.0, 0.0
    with threads(config.threads):
        for run, count in counts.items():
            # Any other exception is a defect in a plugin. The run itself reports it, with plugin and traceback.
            with suppress(Exception):
                try:
                    trainable = trainer.make_trainable(config, run)
                    steps += count * _step_seconds(config, trainable)
                    evaluation = evaluation or _processor_seconds(trainable.validate)
                except GradhomogError as error:
                    failures.setdefault(str(error), []).append(_describe_run(config, run))
            progress({"event": "dry_run", "run": run.id, "of": len(counts)})
    if failures:
        raise ConfigError(_message(config, failures))
    train = config.train
    evaluations = float(math.ceil(train.steps / train.validate_every))
    if config.problem is None:
        evaluations += config.test.episodes / train.validation_episodes
    return Estimate(steps * train.steps + sum(counts.values()) * evaluations * evaluation)


def _step_seconds(config: Config, trainable: Trainable) -> float:
    """Return the processor time of the second step. The first step is not measured: it includes one-time setup."""
    optimizer = trainer.make_optimizer(config, trainable)
    trainable.step(0, optimizer, inspect=True)
    return _processor_seconds(lambda: trainable.step(1, optimizer, inspect=False))


def _processor_seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def _describe_run(config: Config, run: Run) -> str:
    return f"{run.learner} with {run.homogenizers}" if len(config.learners) > 1 else run.homogenizers


def _message(config: Config, failures: Mapping[str, Sequence[str]]) -> str:
    subject, alternative = ", ".join(config.learners), "another learner, network or domains"
    if config.problem is not None:
        subject, alternative = f"the problem {config.problem.name}", "another `problem.name`"
    lines = [f"`homogenizers`: the dry run of these with {subject} failed, and nothing was started."]
    for reason, names in failures.items():
        lines += [f"  {', '.join(names)}", textwrap.indent(reason, "    ")]
    return "\n".join([*lines, f"Follow each message, remove these from `homogenizers`, or choose {alternative}."])
