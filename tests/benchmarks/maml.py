"""Benchmark of one meta-step of MAML: learners, a hand-written loop, TorchOpt's MetaSGD, and `higher`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import OptionError
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE, MEMORY_NOTE
from gradhomog.experiments.profiling.timing import Workload
from gradhomog.learners.learner import Learner
from gradhomog.learners.tasks import TaskBatch
from gradhomog.registry import expression, installed, options
from tests.benchmarks import maml_peers
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.case import Case
from tests.benchmarks.command import main
from tests.benchmarks.maml_inputs import FORMS, Setting, to_channels_last
from tests.benchmarks.maml_peers import BY_HAND, HIGHER, META_SGD, PEERS, Peer

SHAPES = ((25, 40), (4, 1, 28, 64))
"""25 sinusoids with the network of Finn et al. 2017, and conv4 on 28 px. At 84 px a step takes up to a minute."""

EVERYWHERE = ("maml", "maml(recompute=true)", "maml(first_order=true)")
FOR_SINUSOIDS = ('maml(engine="loop")', "maml(compile=true)")
FOR_IMAGES = ('maml(autocast="bfloat16")',)
VECTORIZED = 'maml(engine="vmap")'
LARGEST_AT_ONCE = 4 * 28 * 28 * 64
"""Maximum of tasks · pixels · filters for workloads that keep the graphs of all tasks: summed losses and `VECTORIZED`,
which took 14 GB for 4 tasks at 84 px with 32 filters."""

REFERENCES = (BY_HAND, META_SGD, HIGHER)
CHANNELS_LAST = "maml, channels last"
ROWS = "maml, rows only"


class MetaStep:
    """One meta-step of a learner with the pipeline `none`, with the outer optimizer of `Peer`.

    Attributes:
        channels_last: True if network and images have the memory format `torch.channels_last`.
    """

    def __init__(self, text: str, network: nn.Sequential, *, channels_last: bool = False) -> None:
        selector, own = expression.parse_one(text)
        _, spec = installed().load("learners", selector)
        common = {"inner_steps": maml_peers.STEPS, "inner_lr": maml_peers.RATE}
        accepted = {name: value for name, value in common.items() if name in options.option_parameters(spec)}
        self.channels_last = channels_last
        self.network = network.to(memory_format=torch.channels_last) if channels_last else network
        encoder, head = self.network
        self.learner: Learner = installed().make("learners", selector, {**accepted, **own}, encoder, head)[2]
        self.outer = torch.optim.Adam(self.learner.parameters(), lr=0.0)

    def __call__(self, batch: TaskBatch) -> None:
        self.learner.step(to_channels_last(batch) if self.channels_last else batch, self.outer)


def workloads(texts: Sequence[str], setting: Setting) -> tuple[dict[str, Workload], list[str]]:
    """The workloads by label, and notes about omitted workloads."""
    at_once = not setting.images or _size(setting) <= LARGEST_AT_ONCE
    found, notes = dict[str, Workload](), list[str]()
    for label, accumulate in PEERS.items():
        if at_once or accumulate is not maml_peers.summed:
            found[label] = Peer(accumulate, setting.network())
    if not at_once:
        notes.append("Workloads that keep the graphs of all tasks are omitted: for these images they need gigabytes.")
    defaults = [*EVERYWHERE, *(FOR_IMAGES if setting.images else FOR_SINUSOIDS), *([VECTORIZED] if at_once else [])]
    for text in texts or defaults:
        step = MetaStep(text, setting.network())
        if "compile" in text and (reason := _compile_error(step, setting.batch(0))):
            notes.append(f"{text} is omitted: {reason}")
            continue
        found[text] = step
    if not texts:
        plain = MetaStep("maml", setting.network())
        found[ROWS] = plain.learner.rows
        if setting.images:
            found[CHANNELS_LAST] = MetaStep("maml", setting.network(), channels_last=True)
    return found, notes


def _size(setting: Setting) -> int:
    tasks, _, size, width = setting.shape
    return tasks * size * size * width


def _compile_error(step: MetaStep, batch: TaskBatch) -> str | None:
    """Compile the step, before it is timed; return the message if compilation fails on this machine."""
    try:
        step(batch)
    except OptionError as error:  # usually no C++ compiler is found
        return str(error).strip().splitlines()[0]
    return None


class Cosine:
    """Cosine between `.grad` after a workload and the gradient of the hand-written loop in float64, on one batch."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._exact: Tensor | None = None

    def __call__(self, workload: Any) -> float | None:
        if not isinstance(workload, (Peer, MetaStep)):
            return None
        if self._exact is None:
            exact = Setting(self.setting.shape, torch.float64)
            network = exact.network()
            maml_peers.by_hand(network, exact.batch(0))
            self._exact = gradient(network)
        return float(torch.cosine_similarity(gradient(workload.network), self._exact, dim=0))


def gradient(network: nn.Module) -> Tensor:
    """`.grad` of all parameters, `[params]` in float64."""
    return torch.cat([p.grad.double().flatten() for p in network.parameters() if p.grad is not None])


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All workloads on a network and tasks of `shape`, one of `FORMS`."""
    setting = Setting(shape)
    made, notes = workloads(texts, setting)
    return Case(
        made,
        setting.batch,
        REFERENCES,
        f"one meta-step of MAML, {maml_peers.STEPS} inner steps: {setting.title}",
        (
            "A meta-step: the gradient of the mean query loss, of second order unless the label differs, and Adam.",
            "All took steps in turn on the same batches; the first round is a warm-up unless it is the only round.",
            "to …: median over rounds of (its time / time of the other in the same round).",
            INTERVAL_NOTE,
            f"{MEMORY_NOTE}; for others than {BY_HAND}, the difference.",
            "cosine: between its gradient and that of the hand-written loop in float64, on the first batch.",
            *notes,
        ),
        shared_budget=True,
        paired=True,
        cosine=Cosine(setting),
    )


BENCHMARK = Benchmark("maml", "learner", FORMS, SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))
