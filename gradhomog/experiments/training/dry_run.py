"""Two steps of every method before any run starts: refuses what cannot work together, and estimates the time."""

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
    """Seconds of processor time that a comparison takes, from the times of second steps and of one validation."""

    seconds: float


def dry_run(
    config: Config, rows: Sequence[Method], progress: Callable[[Mapping[str, Any]], None] = lambda record: None
) -> Estimate:
    """Take the first two steps of every pipeline of a comparison on a trainable of its own, which is thrown away.

    What a homogenizer needs of a network, its features or its losses is known only to the homogenizer, and asked for
    only in a step. Writes no file; `progress` is called after each with the record `dry_run`.

    Raises:
        ConfigError: a first step is refused; names every pipeline of which it is, with the reason.
    """
    failed: dict[str, list[str]] = {}  # pipelines by the reason, which may be that of all
    seed, seeds = config.seed_list[0], len(config.seed_list)
    # Of a tuned method every candidate runs with the first seed, and one of them with the others.
    counts = {
        Run(row.learner, text, seed): 1 + (seeds - 1) / len(row.candidates) for row in rows for text in row.candidates
    }
    steps, evaluation = 0.0, 0.0
    with threads(config.threads):
        for run, count in counts.items():
            # Any other exception is no refusal but a defect, which the run tells with its author and traceback.
            with suppress(Exception):
                try:
                    trained = trainer.trainable(config, run)
                    steps += count * _step_seconds(config, trained)
                    evaluation = evaluation or _timed(trained.validate)
                except GradhomogError as error:
                    failed.setdefault(str(error), []).append(_named(config, run))
            progress({"event": "dry_run", "run": run.id, "of": len(counts)})
    if failed:
        raise ConfigError(_message(config, failed))
    train = config.train
    evaluations = float(math.ceil(train.steps / train.validate_every))
    if config.problem is None:
        evaluations += config.test.episodes / train.validation_episodes
    return Estimate(steps * train.steps + sum(counts.values()) * evaluations * evaluation)


def _step_seconds(config: Config, trained: Trainable) -> float:
    """Of the second step: the first one also sets things up."""
    outer = trainer.optimizer(config, trained)
    trained.step(0, outer, inspect=True)
    return _timed(lambda: trained.step(1, outer, inspect=False))


def _timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _named(config: Config, run: Run) -> str:
    return f"{run.learner} with {run.homogenizers}" if len(config.learners) > 1 else run.homogenizers


def _message(config: Config, failed: Mapping[str, Sequence[str]]) -> str:
    what, instead = ", ".join(config.learners), "another learner, network or domains"
    if config.problem is not None:
        what, instead = f"the problem {config.problem.name}", "another `problem.name`"
    lines = [f"`homogenizers`: these cannot take a first step with {what}, so nothing was started."]
    for why, names in failed.items():
        lines += [f"  {', '.join(names)}", textwrap.indent(why, "    ")]
    return "\n".join([*lines, f"Do as each says, leave them out of `homogenizers`, or choose {instead}."])
