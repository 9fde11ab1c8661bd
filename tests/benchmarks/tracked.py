"""Benchmark of one step of a network with several losses: `tracked`, beside a step of the summed losses."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import gradhomog
from gradhomog.experiments.profiling.harness import Comparison, Workload
from tests.benchmarks.backward import FORMS, SUMMED, Setting, Step, homogenized, summed
from tests.benchmarks.benchmark import Benchmark

SHAPES = tuple((tasks, *sizes) for sizes in ((3, 50), (64, 1000)) for tasks in (2, 4, 16))


def compare(texts: Sequence[str], setting: Setting) -> Comparison:
    steps: dict[str, Workload] = {SUMMED: Step(summed, setting.network())}
    # One method with N backward passes, and tracked with weights of every step or fewer.
    every = [f"tracked(every={rounds * setting.tasks})" for rounds in (1, 4)]
    bfloat16 = f'tracked(every={4 * setting.tasks}, dtype="bfloat16")'
    for text in texts or ("none", "upgrad", "tracked", *every, bfloat16):
        pipe = gradhomog.pipeline(text)
        label = text if "tracked" in text else f"backward {text}"
        steps[label] = Step(homogenized(pipe), setting.network(), pipe.choose)
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
