"""One meta-step of MAML: our learner by name, beside a hand-written loop, TorchOpt's MetaSGD and `higher`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import expression
from gradhomog.experiments.profiling import maml_peers, table
from gradhomog.experiments.profiling.kernel import Kernel, Trial
from gradhomog.experiments.profiling.maml_peers import BY_HAND, PEERS, Peer
from gradhomog.experiments.profiling.maml_tasks import FORMS, Setting, channels_last
from gradhomog.experiments.profiling.timing import Work
from gradhomog.learners import Learner
from gradhomog.registry import installed, options
from gradhomog.tasks import TaskBatch

SHAPES = ((25, 40), (4, 1, 28, 64))
"""25 sinusoids with the network of Finn et al. 2017; conv4 of the papers on 28 px. At 84 px a step takes a minute."""

EVERYWHERE = ("maml", "maml(recompute=true)", "maml(first_order=true)")
FOR_SINUSOIDS = ('maml(engine="loop")', "maml(compile=true)")
FOR_IMAGES = ('maml(autocast="bfloat16")',)
VECTORIZED = 'maml(engine="vmap")'
LARGEST_AT_ONCE = 4 * 28 * 28 * 64
"""Tasks times pixels times filters, up to which the graphs of all tasks at once are no burden: of summed losses and of
`VECTORIZED`, which took 14 GB for 4 tasks at 84 px with 32 filters."""

REFERENCES = (BY_HAND, *maml_peers.PACKAGES)
LAID_OUT = "maml, channels last"
ROWS = "maml, rows only"


class Ours:
    """One meta-step of a learner, homogenized by `none`, with the outer optimizer of `Peer`."""

    def __init__(self, text: str, network: nn.Sequential, *, laid_out: bool = False) -> None:
        selector, own = expression.parse_one(text)
        _, spec = installed().load("learners", selector)
        ours = {"inner_steps": maml_peers.STEPS, "inner_lr": maml_peers.RATE}
        offered = {name: value for name, value in ours.items() if name in options.accepted(spec)}
        self.laid_out = laid_out
        self.network = network.to(memory_format=torch.channels_last) if laid_out else network  # type: ignore[call-overload]
        encoder, head = self.network
        self.learner: Learner = installed().make("learners", selector, {**offered, **own}, encoder, head)[2]
        self.outer = torch.optim.Adam(self.learner.parameters(), lr=0.0)

    def __call__(self, batch: TaskBatch) -> None:
        self.learner.step(channels_last(batch) if self.laid_out else batch, self.outer)


def works(texts: Sequence[str], setting: Setting) -> tuple[dict[str, Work], list[str]]:
    """What is timed by label, and a line for each that is left out."""
    at_once = not setting.images or _size(setting) <= LARGEST_AT_ONCE
    absent, found, notes = maml_peers.missing(), dict[str, Work](), list[str]()
    for label, accumulate in PEERS.items():
        if label in absent:
            notes.append(f"{label} is left out: {absent[label]} is not installed.")
        elif at_once or accumulate is not maml_peers.summed:
            found[label] = Peer(accumulate, setting.network())
    if not at_once:
        notes.append("What keeps the graphs of all tasks at once is left out: of these images it would take gigabytes.")
    some = [*EVERYWHERE, *(FOR_IMAGES if setting.images else FOR_SINUSOIDS), *([VECTORIZED] if at_once else [])]
    for text in texts or some:
        ours = Ours(text, setting.network())
        if "compile" in text and (reason := _warm(ours, setting.batch(0))):
            notes.append(f"{text} is left out: torch.compile says: {reason}")
            continue
        found[text] = ours
    if not texts:
        plain = Ours("maml", setting.network())
        found[ROWS] = plain.learner.rows
        if setting.images:
            found[LAID_OUT] = Ours("maml", setting.network(), laid_out=True)
    return found, notes


def _size(setting: Setting) -> int:
    tasks, _, size, width = setting.shape
    return tasks * size * size * width


def _warm(ours: Ours, batch: TaskBatch) -> str | None:
    """Compile, so that it is not timed; the reason why that cannot be done here."""
    try:
        ours(batch)
    except RuntimeError as error:  # most often no C++ compiler is found
        return str(error).strip().splitlines()[0]
    return None


class Cosine:
    """Between what a work left in `.grad` and the gradient of the hand-written loop in float64, on the first batch."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._right: Tensor | None = None

    def __call__(self, work: Any) -> float | None:
        if not isinstance(work, (Peer, Ours)):
            return None
        if self._right is None:
            exact = Setting(self.setting.shape, torch.float64)
            network = exact.network()
            maml_peers.by_hand(network, exact.batch(0))
            self._right = gradient(network)
        return float(torch.cosine_similarity(gradient(work.network), self._right, dim=0))


def gradient(network: nn.Module) -> Tensor:
    """`.grad` of all parameters, `[params]` in float64."""
    return torch.cat([p.grad.double().flatten() for p in network.parameters() if p.grad is not None])


def _trial(texts: Sequence[str], shape: Sequence[int]) -> Trial:
    setting = Setting(shape)
    made, left_out = works(texts, setting)
    return Trial(
        made,
        setting.batch,
        tuple(label for label in REFERENCES if label in made),
        f"one meta-step of MAML, {maml_peers.STEPS} inner steps: {setting.title}",
        (
            "A meta-step: the gradient of the tasks' mean query loss, second order unless it says otherwise, and Adam.",
            "All took their steps in turn on the same batches; the first round counts only if it is alone.",
            "to …: median over rounds of (its time / the other's time in the same round).",
            table.INTERVAL_NOTE,
            f"{table.MEMORY_NOTE};",
            f"others than {BY_HAND}: what they add.",
            "cosine: of its gradient to that of the hand-written loop in float64, on the batch of the first round.",
            *left_out,
        ),
        together=True,
        paired=True,
        cosine=Cosine(setting),
    )


maml_costs = Kernel(FORMS, SHAPES, _trial)
"""Time, memory and accuracy of one meta-step, as multiples of a hand-written loop's."""
