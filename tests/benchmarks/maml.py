"""One meta-step of MAML: learners by name, beside a hand-written loop, TorchOpt's MetaSGD and `higher`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import expression
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE, MEMORY_NOTE
from gradhomog.experiments.profiling.timing import Work
from gradhomog.learners import Learner
from gradhomog.registry import installed, options
from gradhomog.tasks import TaskBatch
from tests.benchmarks import maml_peers
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.case import Case
from tests.benchmarks.command import main
from tests.benchmarks.maml_inputs import FORMS, Setting, channels_last
from tests.benchmarks.maml_peers import BY_HAND, HIGHER, META_SGD, PEERS, Peer

SHAPES = ((25, 40), (4, 1, 28, 64))
"""25 sinusoids with the network of Finn et al. 2017; conv4 on 28 px. At 84 px a step takes up to a minute."""

EVERYWHERE = ("maml", "maml(recompute=true)", "maml(first_order=true)")
FOR_SINUSOIDS = ('maml(engine="loop")', "maml(compile=true)")
FOR_IMAGES = ('maml(autocast="bfloat16")',)
VECTORIZED = 'maml(engine="vmap")'
LARGEST_AT_ONCE = 4 * 28 * 28 * 64
"""Tasks times pixels times filters, up to which works are timed that keep the graphs of all tasks: summed losses and
`VECTORIZED`, which took 14 GB for 4 tasks at 84 px with 32 filters."""

REFERENCES = (BY_HAND, META_SGD, HIGHER)
LAID_OUT = "maml, channels last"
ROWS = "maml, rows only"


class MetaStep:
    """One meta-step of a learner with the pipeline `none`, with the outer optimizer of `Peer`.

    Attributes:
        laid_out: whether network and images are in the memory format `torch.channels_last`.
    """

    def __init__(self, text: str, network: nn.Sequential, *, laid_out: bool = False) -> None:
        selector, own = expression.parse_one(text)
        _, spec = installed().load("learners", selector)
        common = {"inner_steps": maml_peers.STEPS, "inner_lr": maml_peers.RATE}
        offered = {name: value for name, value in common.items() if name in options.accepted(spec)}
        self.laid_out = laid_out
        self.network = network.to(memory_format=torch.channels_last) if laid_out else network
        encoder, head = self.network
        self.learner: Learner = installed().make("learners", selector, {**offered, **own}, encoder, head)[2]
        self.outer = torch.optim.Adam(self.learner.parameters(), lr=0.0)

    def __call__(self, batch: TaskBatch) -> None:
        self.learner.step(channels_last(batch) if self.laid_out else batch, self.outer)


def works(texts: Sequence[str], setting: Setting) -> tuple[dict[str, Work], list[str]]:
    """The works by label, and lines about works that are left out."""
    at_once = not setting.images or _size(setting) <= LARGEST_AT_ONCE
    found, notes = dict[str, Work](), list[str]()
    for label, accumulate in PEERS.items():
        if at_once or accumulate is not maml_peers.summed:
            found[label] = Peer(accumulate, setting.network())
    if not at_once:
        notes.append(
            "Works that keep the graphs of all tasks at once are left out: for these images they take gigabytes."
        )
    some = [*EVERYWHERE, *(FOR_IMAGES if setting.images else FOR_SINUSOIDS), *([VECTORIZED] if at_once else [])]
    for text in texts or some:
        step = MetaStep(text, setting.network())
        if "compile" in text and (reason := _compile_error(step, setting.batch(0))):
            notes.append(f"{text} is left out: torch.compile reports: {reason}")
            continue
        found[text] = step
    if not texts:
        plain = MetaStep("maml", setting.network())
        found[ROWS] = plain.learner.rows
        if setting.images:
            found[LAID_OUT] = MetaStep("maml", setting.network(), laid_out=True)
    return found, notes


def _size(setting: Setting) -> int:
    tasks, _, size, width = setting.shape
    return tasks * size * size * width


def _compile_error(step: MetaStep, batch: TaskBatch) -> str | None:
    """Compile, which is not timed; the message if that fails on this machine."""
    try:
        step(batch)
    except RuntimeError as error:  # most often no C++ compiler is found
        return str(error).strip().splitlines()[0]
    return None


class Cosine:
    """Between `.grad` after a work and the gradient of the hand-written loop in float64, on the first batch."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._exact: Tensor | None = None

    def __call__(self, work: Any) -> float | None:
        if not isinstance(work, (Peer, MetaStep)):
            return None
        if self._exact is None:
            exact = Setting(self.setting.shape, torch.float64)
            network = exact.network()
            maml_peers.by_hand(network, exact.batch(0))
            self._exact = gradient(network)
        return float(torch.cosine_similarity(gradient(work.network), self._exact, dim=0))


def gradient(network: nn.Module) -> Tensor:
    """`.grad` of all parameters, `[params]` in float64."""
    return torch.cat([p.grad.double().flatten() for p in network.parameters() if p.grad is not None])


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All works on a network and tasks of `shape`, one of `FORMS`."""
    setting = Setting(shape)
    made, left_out = works(texts, setting)
    return Case(
        made,
        setting.batch,
        REFERENCES,
        f"one meta-step of MAML, {maml_peers.STEPS} inner steps: {setting.title}",
        (
            "A meta-step: the gradient of the tasks' mean query loss, second order if not labelled otherwise; Adam.",
            "All took their steps in turn on the same batches; the first round counts only if it is the only one.",
            "to …: median over rounds of (its time / the other's time in the same round).",
            INTERVAL_NOTE,
            f"{MEMORY_NOTE}; others than {BY_HAND}: the difference.",
            "cosine: of its gradient to that of the hand-written loop in float64, on the batch of the first round.",
            *left_out,
        ),
        together=True,
        paired=True,
        cosine=Cosine(setting),
    )


BENCHMARK = Benchmark("maml", "learner", FORMS, SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))
