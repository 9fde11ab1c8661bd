"""The overhead of each homogenizer in a training step, on the network, the tasks and the machine of the user."""

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
from gradhomog.experiments.profiling.timing import Progress, Work, interleave
from gradhomog.experiments.results.plan import PLAIN, Run
from gradhomog.experiments.training.meta_learning import make_learner
from gradhomog.learners import Learner

AGAIN = "plain again"
"""A second plain learner: the distance of its ratio from 1 is the error of the measurement."""

WARM_UP = 2
LEAST_ROUNDS = 3


@dataclass(frozen=True)
class Stepper:
    """A learner with its outer optimizer; it shares nothing with the others."""

    learner: Learner
    outer: torch.optim.Optimizer

    def __call__(self, batch: Any) -> object:
        return self.learner.step(batch, self.outer)


def pipelines(config: Config, learner: str) -> dict[str, str]:
    """Pipeline expressions by label: plain, plain again, and the first candidate of every entry of the run file."""
    texts = [method.candidates[0] for method in plan.methods(config) if method.learner == learner]
    return {PLAIN: "none", AGAIN: "none", **{text: text for text in texts if text != "none"}}


def step_overheads(
    config: Config,
    *,
    rounds: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress = lambda done, most: None,
) -> list[Table]:
    """One table per learner: `learner.step` with each pipeline, in turn on the same batches, as ratios to plain.

    All learners start from the network of the first seed. The seconds are divided equally between them.

    Raises:
        GradhomogError: names, options, data or device are not usable, or the plain learner fails.
    """
    seed = config.seed_list[0]
    source = streams(config, seed)
    made = {learner: _steppers(config, learner, source) for learner in config.learners}
    with threads(config.threads):
        return [
            _table(config, learner, steppers, source, rounds, seconds / len(made), clock, progress)
            for learner, steppers in made.items()
        ]


def _steppers(config: Config, learner: str, source: Streams) -> dict[str, Stepper]:
    found = {}
    for label, text in pipelines(config, learner).items():
        made = make_learner(config, Run(learner, text, config.seed_list[0]), source)
        found[label] = Stepper(made, torch.optim.Adam(made.parameters(), lr=config.train.outer_lr))
    return found


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
    works: dict[str, Work] = {**steppers}
    timings = interleave(
        works,
        lambda number: source.train.batch(number).to(device),
        reference=PLAIN, rounds=rounds, seconds=seconds, at_least=WARM_UP + LEAST_ROUNDS, together=True,
        warm_up=WARM_UP, clock=clock, synchronize=_synchronizer(device), progress=progress,
    )  # fmt: skip
    peaks, held = {}, {}
    if device.type == "cpu":
        batch = source.train.batch(WARM_UP + rounds)
        for label, stepper in steppers.items():
            if label not in timings.failures:
                peaks[label] = memory.peak_bytes(functools.partial(stepper, batch))
                held[label] = memory.held_bytes(stepper.learner.homogenizers.state_dict())
    network = f"{config.network.name}, width {config.network.width}, inputs {source.input_shape}"
    title = f"one meta-step of {learner}: {network}, {config.episodes.tasks} tasks"
    notes = (
        f"Methods took their steps in turn on the same batches, on {device}, {config.threads} thread"
        f"{'s' if config.threads > 1 else ''}; {WARM_UP} rounds before these do not count.",
        "to plain: median over rounds of (its time / plain's time in the same round).",
        INTERVAL_NOTE,
        f"{AGAIN} is a second plain learner: the distance of its ratio from × 1.00 is the error of this measurement.",
        *(
            [f"{MEMORY_NOTE},", "and the state of the homogenizers; others than plain: the difference."]
            if peaks
            else []
        ),
    )
    return Table(title, PLAIN, table.rows(timings, PLAIN, peaks=peaks, held=held), notes, timings.failures)


def _synchronizer(device: torch.device) -> Callable[[], None]:
    """Wait for a CUDA device, on which operations are asynchronous."""
    if device.type == "cuda":
        return functools.partial(torch.cuda.synchronize, device)
    return lambda: None
