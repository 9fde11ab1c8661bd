"""Benchmark of one step of a network with several losses: `tracked`, beside a step of the summed losses."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import gradhomog
from gradhomog.experiments.profiling.harness import Comparison, Workload
from tests.benchmarks.backward import FORMS, SUMMED, Batch, Network, Setting, Step, homogenized, summed
from tests.benchmarks.benchmark import Benchmark

SHAPES = tuple((tasks, *sizes) for sizes in ((3, 50), (64, 1000)) for tasks in (2, 4, 16))


class TrackedStep:
    """Forward pass, the losses of the chosen tasks, and gradients in `.grad`; without an optimizer."""

    def __init__(self, text: str, network: Network) -> None:
        self.pipe, self.network = gradhomog.pipeline(text), network

    def __call__(self, batch: Batch) -> None:
        self.network.zero_grad()
        features = self.network.encoder(batch.inputs)
        losses = self.network.losses(features, batch, self.pipe.choose(len(self.network.heads)))
        gradhomog.backward(losses, self.pipe, parameters=self.network.encoder)


def expressions(tasks: int) -> tuple[str, ...]:
    """The default pipelines: one method with N backward passes, and tracked with weights of every step or fewer."""
    every = [f"tracked(every={rounds * tasks})" for rounds in (1, 4)]
    return ("none", "upgrad", "tracked", *every, f'tracked(every={4 * tasks}, dtype="bfloat16")')


def compare(texts: Sequence[str], setting: Setting) -> Comparison:
    steps: dict[str, Workload] = {SUMMED: Step(summed, setting.network())}
    for text in texts or expressions(setting.tasks):
        if "tracked" in text:
            steps[text] = TrackedStep(text, setting.network())
        else:
            steps[f"backward {text}"] = Step(homogenized(text), setting.network())
    return Comparison(
        f"one step: {setting.title}", steps, setting.batch, (SUMMED,),
        (
            "A step: forward, the losses of linear heads, gradients into .grad; no optimizer.",
            "tracked: the loss and the backward pass of one task per step, chosen by Pipeline.choose.",
        ),
    )  # fmt: skip


BENCHMARK = Benchmark("tracked", FORMS, SHAPES, compare)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main(__doc__))
