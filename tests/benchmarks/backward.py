"""Benchmark of one step of a network with several losses: `gradhomog.backward`, hand-written loops, and TorchJD."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

import gradhomog
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE, MEMORY_NOTE
from gradhomog.experiments.profiling.timing import Workload
from tests.benchmarks import backward_peers
from tests.benchmarks.backward_inputs import FORMS, Batch, Network, Setting
from tests.benchmarks.backward_peers import BY_HAND, SUMMED
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.case import Case
from tests.benchmarks.command import main

SHAPES = (*((tasks, 64, 256) for tasks in (2, 4, 8)), *((tasks, 3, 32, 32) for tasks in (2, 4, 8)))

EXPRESSIONS = ("none", "pcgrad", "mgda", "upgrad")
LEVEL = 'level="features"'


class Step:
    """Forward pass, losses, and gradients in `.grad`; without an optimizer, so that parameters are constant.

    Attributes:
        mean: True if the gradient of the encoder is the mean of the task gradients, up to a factor.
    """

    def __init__(self, backward: backward_peers.Backward, network: Network, *, mean: bool) -> None:
        self.backward, self.network, self.mean = backward, network, mean

    def __call__(self, batch: Batch) -> None:
        self.network.zero_grad()
        features = self.network.encoder(batch.inputs)
        self.backward(self.network.losses(features, batch), features, self.network.encoder)


def homogenized(text: str, variant: str) -> backward_peers.Backward:
    """Return a call of `gradhomog.backward` with a new pipeline; `variant` is empty, `features` or `LEVEL`."""
    pipe = gradhomog.pipeline(text)
    level: Literal["parameters", "features"] = "features" if variant == LEVEL else "parameters"

    def backward(losses: Sequence[Tensor], features: Tensor, encoder: torch.nn.Module) -> None:
        gradhomog.backward(losses, pipe, parameters=encoder, features=features if variant else None, level=level)

    return backward


def workloads(texts: Sequence[str], setting: Setting) -> dict[str, Workload]:
    """The workloads by label.

    Raises:
        GradhomogError: an expression of `texts` is invalid.
    """
    found: dict[str, Workload] = {
        BY_HAND: Step(backward_peers.by_hand, setting.network(), mean=True),
        SUMMED: Step(backward_peers.summed, setting.network(), mean=True),
    }
    for text in texts or EXPRESSIONS:
        # The mean is the same at the level of features. For other methods, features without `level` have no effect.
        for variant in ("", "features" if text == "none" else LEVEL):
            label = ", ".join(filter(None, (f"backward {text}", variant)))
            found[label] = Step(homogenized(text, variant), setting.network(), mean=text == "none")
    for name in ("Mean", "UPGrad"):
        for label, backward in backward_peers.torchjd(name).items():
            found[label] = Step(backward, setting.network(), mean=name == "Mean")
    return found


class Cosine:
    """Cosine between the `.grad` of the encoder after a workload and that of the loop by hand in float64, for means."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._exact: Tensor | None = None

    def __call__(self, workload: Any) -> float | None:
        if not workload.mean:
            return None
        if self._exact is None:
            exact = Setting(self.setting.shape, torch.float64)
            step = Step(backward_peers.by_hand, exact.network(), mean=True)
            step(exact.batch(0))
            self._exact = gradient(step)
        return float(torch.cosine_similarity(gradient(workload), self._exact, dim=0))


def gradient(step: Step) -> Tensor:
    """`.grad` of the encoder, `[params]` in float64."""
    grads = [parameter.grad for parameter in step.network.encoder.parameters()]
    return torch.cat([grad.double().flatten() for grad in grads if grad is not None])


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All workloads on a network and batches of `shape`, one of `FORMS`."""
    setting = Setting(shape)
    return Case(
        workloads(texts, setting),
        setting.batch,
        (BY_HAND, SUMMED),
        f"one step: {setting.title}",
        (
            "A step: forward, one loss per linear head, gradients into .grad; no optimizer.",
            f"{BY_HAND}: one backward pass per loss, each adds 1/N of the gradient. chunk 1: parallel_chunk_size=1.",
            "All took steps in turn on the same batches; the first round is a warm-up.",
            "to …: median over rounds of (its time / time of the other in the same round).",
            INTERVAL_NOTE,
            f"{MEMORY_NOTE}; for others than {BY_HAND}, the difference.",
            f"cosine: between the mean gradient of the encoder and that of {BY_HAND} in float64, on the first batch.",
        ),
        min_rounds=2,
        shared_budget=True,
        paired=True,
        cosine=Cosine(setting),
    )


BENCHMARK = Benchmark("backward", "homogenizer", FORMS, SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))
