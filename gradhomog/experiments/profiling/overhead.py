"""Measure the overhead of each homogenizer in a training step, with the user's network, tasks and machine."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.data.splits import Streams, streams
from gradhomog.experiments.execution import plan
from gradhomog.experiments.execution.threads import threads
from gradhomog.experiments.profiling import memory, table
from gradhomog.experiments.profiling.table import Table
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE, MEMORY_NOTE
from gradhomog.experiments.profiling.timing import Progress, Workload, interleave
from gradhomog.experiments.results.plan import PLAIN, Run
from gradhomog.experiments.training.meta_learning import make_learner
from gradhomog.learners.learner import Learner

SECOND_PLAIN = "plain again"
"""Label of a second plain learner: the distance of its ratio from 1 is the error of the measurement."""

WARM_UP = 2
"""The first step allocates the optimizer's state; homogenizers with memory have earlier rows from the second step."""

MIN_ROUNDS = 3
"""The fewest rounds whose median is not changed by one outlier; intervals require six."""


@dataclass(frozen=True)
class Stepper:
    """A learner with its outer optimizer; steppers share no parameters."""

    learner: Learner
    outer: torch.optim.Optimizer

    def __call__(self, batch: Any) -> object:
        return self.learner.step(batch, self.outer)


def pipelines(config: Config, learner: str) -> dict[str, str]:
    """Pipeline expressions by label: plain, plain again, and the first candidate of each method of the run file."""
    texts = [method.candidates[0] for method in plan.methods(config) if method.learner == learner]
    return {PLAIN: "none", SECOND_PLAIN: "none", **{text: text for text in texts if text != "none"}}


def step_overheads(
    config: Config,
    *,
    rounds: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress = lambda done, total: None,
) -> list[Table]:
    """One table per learner: time and memory of `learner.step` with each pipeline, as ratios to plain.

    Pipelines take steps alternately on the same batches. All learners start from the network of the first seed.
    `seconds` is divided equally between learners.

    Raises:
        GradhomogError: names, options, data or device are invalid, or the plain learner fails.
    """
    seed = config.seed_list[0]
    source = streams(config, seed)
    steppers_by_learner = {learner: _make_steppers(config, learner, source) for learner in config.learners}
    share = seconds / len(steppers_by_learner)
    with threads(config.threads):
        return [
            _table(config, learner, steppers, source, rounds, share, clock, progress)
            for learner, steppers in steppers_by_learner.items()
        ]


def _make_steppers(config: Config, learner: str, source: Streams) -> dict[str, Stepper]:
    """A new learner with its optimizer for each pipeline, by label."""
    steppers = {}
    for label, text in pipelines(config, learner).items():
        instance = make_learner(config, Run(learner, text, config.seed_list[0]), source)
        steppers[label] = Stepper(instance, torch.optim.Adam(instance.parameters(), lr=config.train.outer_lr))
    return steppers


def _table(
    config: Config,
    learner: str,
    steppers: dict[str, Stepper],
    source: Streams,
    rounds: int,
    seconds: float,
    clock: Callable[[], float],
    progress: Progress,
) -> Table:
    device = next(iter(steppers.values())).learner.parameters()[0].device
    workloads: dict[str, Workload] = {**steppers}
    timings = interleave(
        workloads,
        lambda number: source.train.batch(number).to(device),
        reference=PLAIN, rounds=rounds, seconds=seconds, min_rounds=WARM_UP + MIN_ROUNDS, shared_budget=True,
        warm_up=WARM_UP, clock=clock, synchronize=synchronizer(device), progress=progress,
    )  # fmt: skip
    peaks, states = {}, {}
    if device.type == "cpu":
        batch = source.train.batch(WARM_UP + rounds)
        for label, stepper in steppers.items():
            if label not in timings.failures:
                peaks[label] = memory.peak_bytes(functools.partial(stepper, batch))
                states[label] = memory.tensor_bytes(stepper.learner.homogenizers.state_dict())
    network = f"{config.network.name}, width {config.network.width}, inputs {source.input_shape}"
    title = f"one meta-step of {learner}: {network}, {config.episodes.tasks} tasks"
    notes = (
        f"Methods took steps alternately on the same batches, on {device}, with {config.threads} thread"
        f"{'s' if config.threads > 1 else ''}; {WARM_UP} warm-up rounds are not included.",
        "to plain: median over rounds of (time of the method / time of plain in the same round).",
        INTERVAL_NOTE,
        f"{SECOND_PLAIN}: a second plain learner; the distance of its ratio from × 1.00 is the measurement error.",
        *(
            [f"{MEMORY_NOTE},", "and the state of the homogenizers; for methods other than plain, the difference."]
            if peaks
            else []
        ),
    )
    return Table(
        title, PLAIN, table.make_timing_rows(timings, PLAIN, peaks=peaks, states=states), notes, timings.failures
    )


def synchronizer(device: torch.device) -> Callable[[], None]:
    """A function that waits for asynchronous operations on a CUDA device; it does nothing for other devices."""
    if device.type == "cuda":
        return functools.partial(torch.cuda.synchronize, device)
    return lambda: None
