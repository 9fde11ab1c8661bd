"""Measure the overhead of each homogenizer in a training step, with the user's network, tasks and machine."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch

from gradhomog.experiments.episodes.splits import Streams, streams
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.profiling.harness import Clock, Comparison, Progress, Workload, measure_all
from gradhomog.experiments.profiling.table import TimingTable
from gradhomog.experiments.results.runs import PLAIN, SINGLE, Run
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.training.meta_learning import make_learner
from gradhomog.experiments.training.trainer import make_optimizer, make_trainable

SECOND_PLAIN = "plain again"
SECOND_PLAIN_NOTE = f"{SECOND_PLAIN}: a second plain learner; the distance of its ratio from × 1.00 is the error."

WARM_UP = 2
"""The first step allocates the optimizer's state; homogenizers with memory have earlier rows from the second step."""

MIN_ROUNDS = 3
"""The fewest rounds whose median is not changed by one outlier; intervals require six."""

STEP_ROUNDS = 50
"""Most rounds of training steps; the time budget ends earlier on all but the smallest problems."""


def pipelines(config: Config, learner: str) -> dict[str, str]:
    """Pipeline expressions by label: plain, plain again, and the first candidate of each method of the run file."""
    texts = [method.candidates[0] for method in make_methods(config) if method.learner == learner]
    return {PLAIN: "none", SECOND_PLAIN: "none", **{text: text for text in texts if text != "none"}}


def step_overheads(
    config: Config,
    *,
    rounds: int,
    seconds: float,
    clock: Clock = time.perf_counter,
    progress: Progress = lambda done, total: None,
) -> list[TimingTable]:
    """One table per learner: time and memory of `learner.step` with each pipeline, as ratios to plain.

    Pipelines take steps alternately on the same batches. All learners start from the network of the first seed.
    `seconds` is divided equally between learners.

    Raises:
        GradhomogError: names, options, data or device are invalid, or the plain learner fails.
    """
    source = streams(config, config.seed_list[0])
    comparisons = [_compare_steps(config, learner, source) for learner in config.learners]
    return measure_all(
        comparisons, thread_count=config.threads, rounds=rounds, seconds=seconds, clock=clock, progress=progress
    )


def trainable_overheads(
    config: Config, learner: str, seconds: float, progress: Progress = lambda done, total: None
) -> TimingTable:
    """The time of whole training steps of a learner or a multi-task problem with each pipeline, as ratios to plain.

    Unlike `step_overheads`, a step includes the computation of its batch, and memory is not measured.

    Raises:
        GradhomogError: names, options, data or device are invalid.
    """
    steppers: dict[str, Workload] = {}
    for label, text in pipelines(config, learner).items():
        if text != SINGLE:
            run = Run(learner, text, config.seed_list[0])
            trainable = make_trainable(config.for_run(learner, text, run.seed), run)
            optimizer = make_optimizer(config, trainable)
            steppers[label] = functools.partial(trainable.step, optimizer=optimizer, inspect=False)
    comparison = Comparison(
        "one training step", steppers, lambda number: number, (PLAIN,), (SECOND_PLAIN_NOTE,),
        min_rounds=1 + MIN_ROUNDS, device=torch.device(config.device), with_memory=False,
    )  # fmt: skip
    [table] = measure_all(
        [comparison], thread_count=config.threads, rounds=STEP_ROUNDS, seconds=seconds, progress=progress
    )
    return table


class Stepper:
    """A new learner with its outer optimizer; steppers share no parameters."""

    def __init__(self, config: Config, learner: str, text: str, source: Streams) -> None:
        self.learner = make_learner(config, Run(learner, text, config.seed_list[0]), source)
        self.outer = torch.optim.Adam(self.learner.parameters(), lr=config.train.outer_lr)

    def __call__(self, batch: Any) -> object:
        return self.learner.step(batch, self.outer)

    def state(self) -> object:
        """The state of its homogenizers."""
        return self.learner.homogenizers.state_dict()


def make_steppers(config: Config, learner: str, source: Streams) -> dict[str, Stepper]:
    """A stepper for each pipeline, by label."""
    return {label: Stepper(config, learner, text, source) for label, text in pipelines(config, learner).items()}


def _compare_steps(config: Config, learner: str, source: Streams) -> Comparison:
    steppers = make_steppers(config, learner, source)
    device = steppers[PLAIN].learner.parameters()[0].device
    network = f"{config.network.name}, width {config.network.width}, inputs {source.input_shape}"
    return Comparison(
        f"one meta-step of {learner}: {network}, {config.episodes.tasks} tasks",
        steppers, lambda number: source.train.batch(number).to(device), (PLAIN,), (SECOND_PLAIN_NOTE,),
        warm_up=WARM_UP, min_rounds=WARM_UP + MIN_ROUNDS, device=device, state=Stepper.state,
    )  # fmt: skip
