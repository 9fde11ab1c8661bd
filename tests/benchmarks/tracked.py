"""Benchmark of one step of a network with several losses: `tracked`, beside a step of the summed losses."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch.nn import functional

import gradhomog
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE, MEMORY_NOTE
from gradhomog.experiments.profiling.timing import Workload
from tests.benchmarks import backward_peers
from tests.benchmarks.backward import Step, homogenized
from tests.benchmarks.backward_inputs import FORMS, Batch, Network, Setting
from tests.benchmarks.backward_peers import SUMMED
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.case import Case
from tests.benchmarks.command import main

SHAPES = tuple((tasks, *sizes) for sizes in ((3, 50), (64, 1000)) for tasks in (2, 4, 16))


class TrackedStep:
    """Forward pass, the losses of the chosen tasks, and gradients in `.grad`; without an optimizer."""

    def __init__(self, text: str, network: Network) -> None:
        self.pipe, self.network = gradhomog.pipeline(text), network

    def __call__(self, batch: Batch) -> None:
        network = self.network
        network.zero_grad()
        features = network.encoder(batch.inputs)
        chosen = self.pipe.choose(len(network.heads))
        pairs = enumerate(zip(network.heads, batch.targets, strict=True))
        losses = [functional.mse_loss(head(features), y) if task in chosen else None for task, (head, y) in pairs]
        gradhomog.backward(losses, self.pipe, parameters=network.encoder)


def expressions(tasks: int) -> tuple[str, ...]:
    """The default pipelines: one method with N backward passes, and tracked with weights of every step or fewer."""
    every = [f"tracked(every={rounds * tasks})" for rounds in (1, 4)]
    return ("none", "upgrad", "tracked", *every, f'tracked(every={4 * tasks}, dtype="bfloat16")')


def workloads(texts: Sequence[str], setting: Setting) -> dict[str, Workload]:
    """The workloads by label.

    Raises:
        GradhomogError: an expression of `texts` is invalid.
    """
    found: dict[str, Workload] = {SUMMED: Step(backward_peers.summed, setting.network(), mean=True)}
    for text in texts or expressions(setting.shape[0]):
        if "tracked" in text:
            found[text] = TrackedStep(text, setting.network())
        else:
            found[f"backward {text}"] = Step(homogenized(text, ""), setting.network(), mean=text == "none")
    return found


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All workloads on a network and batches of `shape`, one of `FORMS`."""
    setting = Setting(shape)
    return Case(
        workloads(texts, setting),
        setting.batch,
        (SUMMED,),
        f"one step: {setting.title}",
        (
            "A step: forward, the losses of linear heads, gradients into .grad; no optimizer.",
            "tracked: the loss and the backward pass of one task per step, chosen by Pipeline.choose.",
            "All took steps in turn on the same batches; the first round is a warm-up.",
            INTERVAL_NOTE,
            f"{MEMORY_NOTE}; for others than {SUMMED}, the difference.",
        ),
        min_rounds=2,
        shared_budget=True,
        paired=True,
    )


BENCHMARK = Benchmark("tracked", "homogenizer", FORMS, SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))
