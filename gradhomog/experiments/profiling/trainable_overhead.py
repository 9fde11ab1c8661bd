"""Measure the time of whole training steps of a trainable, a learner or a multi-task problem, with each pipeline.

Unlike `overhead`, which times `learner.step` alone and its memory, a step includes the computation of its batch.
"""

from __future__ import annotations

import functools

import torch

from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.execution.threads import threads
from gradhomog.experiments.profiling.overhead import MIN_ROUNDS, SECOND_PLAIN, pipelines, synchronizer
from gradhomog.experiments.profiling.table import Table, make_timing_rows
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE
from gradhomog.experiments.profiling.timing import Progress, Workload, interleave
from gradhomog.experiments.results.plan import PLAIN, SINGLE, Run
from gradhomog.experiments.training.trainer import make_optimizer, make_trainable

ROUNDS = 50
"""Most rounds; the time budget ends earlier on all but the smallest problems."""

WARM_UP = 1
"""The first step allocates the optimizer's state."""


def trainable_overheads(
    config: Config, learner: str, seconds: float, progress: Progress = lambda done, total: None
) -> Table:
    """Return the time of a training step with each pipeline, as ratios to the plain step.

    Of a tuned method the first candidate is measured. Pipelines take steps alternately on the same batches.

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
    with threads(config.threads):
        timings = interleave(
            steppers, lambda number: number, reference=PLAIN, rounds=ROUNDS, seconds=seconds,
            min_rounds=WARM_UP + MIN_ROUNDS, shared_budget=True, warm_up=WARM_UP,
            synchronize=synchronizer(torch.device(config.device)), progress=progress,
        )  # fmt: skip
    notes = (INTERVAL_NOTE, f"{SECOND_PLAIN}: the distance of its ratio from × 1.00 is the measurement error.")
    return Table("one training step", PLAIN, make_timing_rows(timings, PLAIN), notes, timings.failures)
