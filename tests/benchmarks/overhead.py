"""Benchmark of one step of a large network with several losses, on a GPU where there is one: every homogenizer."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

import gradhomog
from gradhomog.experiments.profiling.overhead import synchronizer
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE
from gradhomog.experiments.profiling.timing import Workload
from tests.benchmarks import backward_peers
from tests.benchmarks.backward import Step, homogenized
from tests.benchmarks.backward_inputs import Batch
from tests.benchmarks.backward_peers import BY_HAND, SUMMED
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.case import Case
from tests.benchmarks.command import main
from tests.benchmarks.overhead_inputs import DEVICE, FORMS, Setting

SHAPES = tuple((tasks, *sizes) for sizes in ((3, 84, 64), (84,), (8, 1024)) for tasks in (4, 16))


class Synchronized:
    """A step, until the device has finished it."""

    def __init__(self, step: Step) -> None:
        self._step, self._wait = step, synchronizer(DEVICE)

    def __call__(self, batch: Batch) -> None:
        self._step(batch)
        self._wait()


def acts_on_rows(name: str) -> bool:
    """False for homogenizers that act in the network, or that read more than losses and rows."""
    pipe = gradhomog.pipeline(name)
    needs = {need for member in pipe.members for need in member.needs}
    return not needs & {"features", "kernel_traces", "targets"} and not pipe.requirements.attaching


def workloads(texts: Sequence[str], setting: Setting) -> dict[str, Workload]:
    """The workloads by label; all use one network, whose parameters do not change.

    Raises:
        GradhomogError: an expression of `texts` is invalid.
    """
    network = setting.network()
    steps = {SUMMED: backward_peers.summed, BY_HAND: backward_peers.by_hand}
    default = ["none", *filter(acts_on_rows, gradhomog.available())]
    steps.update((text, homogenized(text, "")) for text in texts or default)
    return {label: Synchronized(Step(backward, network, mean=False)) for label, backward in steps.items()}


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All workloads on a network and batches of `shape`, one of `FORMS`."""
    setting = Setting(shape)
    return Case(
        workloads(texts, setting),
        setting.batch,
        (SUMMED, BY_HAND),
        f"one step: {setting.title}",
        (
            "A step: forward, the losses of linear heads, gradients into .grad; no optimizer. float32.",
            f"PyTorch {torch.__version__}. Times include the end of all work on the device.",
            "All took steps in turn on the same batches; the first round is a warm-up.",
            INTERVAL_NOTE,
        ),
        min_rounds=2,
        shared_budget=True,
        paired=True,
        with_memory=False,
    )


BENCHMARK = Benchmark("overhead", "homogenizer", FORMS, SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))
