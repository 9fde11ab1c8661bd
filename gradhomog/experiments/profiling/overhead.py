"""Measure the overhead of each homogenizer in a training step, with the user's network, tasks and machine."""

import time
from collections.abc import Sequence

import torch

from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.profiling.harness import Clock, Comparison, Progress, TimingTable, measure_all
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.runs import PLAIN, SINGLE, Run
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
    learners: Sequence[str],
    *,
    rounds: int = STEP_ROUNDS,
    seconds: float,
    clock: Clock = time.perf_counter,
    progress: Progress = lambda done, total: None,
    with_memory: bool = True,
) -> list[TimingTable]:
    """One table per learner, or for the problem: time and memory of a training step with each pipeline, as ratios.

    Pipelines take steps alternately on the same batches; a step includes the computation of its batch. All start from
    the network of the first seed. `seconds` is divided equally between learners.

    Raises:
        GradhomogError: names, options, data or device are invalid, or the plain learner fails.
    """
    comparisons = [
        Comparison(
            f"one training step of {learner}", make_steppers(config, learner), lambda number: number, PLAIN,
            (SECOND_PLAIN_NOTE,), warm_up=WARM_UP, min_rounds=WARM_UP + MIN_ROUNDS, device=torch.device(config.device),
            with_memory=with_memory, state=Stepper.state,
        )
        for learner in learners
    ]  # fmt: skip
    return measure_all(
        comparisons, thread_count=config.threads, rounds=rounds, seconds=seconds, clock=clock, progress=progress
    )


class Stepper:
    """A new learner or problem with its optimizer; steppers share no parameters."""

    def __init__(self, config: Config, learner: str, text: str) -> None:
        run = Run(learner, text, config.seed_list[0])
        self.trainable = make_trainable(config.for_run(run), run)
        self.optimizer = make_optimizer(config, self.trainable)

    def __call__(self, index: int) -> object:
        return self.trainable.step(index, self.optimizer, inspect=False)

    def state(self) -> object:
        """The state of its homogenizers."""
        return self.trainable.state_dict().get("homogenizers")


def make_steppers(config: Config, learner: str) -> dict[str, Stepper]:
    """A stepper for each pipeline, by label."""
    texts = pipelines(config, learner)
    return {label: Stepper(config, learner, text) for label, text in texts.items() if text != SINGLE}
