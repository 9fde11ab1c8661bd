"""One step of a network with several losses: `gradhomog.backward`, beside loops by hand and TorchJD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

import gradhomog
from gradhomog.experiments.profiling import backward_peers, table
from gradhomog.experiments.profiling.backward_peers import BY_HAND, SUMMED
from gradhomog.experiments.profiling.backward_tasks import FORMS, Batch, Network, Setting
from gradhomog.experiments.profiling.kernel import Kernel, Trial
from gradhomog.experiments.profiling.loadable import loadable
from gradhomog.experiments.profiling.timing import Work

SHAPES = (*((tasks, 64, 256) for tasks in (2, 4, 8)), *((tasks, 3, 32, 32) for tasks in (2, 4, 8)))

EXPRESSIONS = ("none", "pcgrad", "mgda", "upgrad")
LEVEL = 'level="features"'


class Step:
    """Forward, the losses, and their gradients in `.grad`; without an optimizer, so every round is at the same place.

    Attributes:
        mean: whether the encoder's gradient is the mean of the tasks', up to a factor.
    """

    def __init__(self, way: backward_peers.Way, network: Network, *, mean: bool) -> None:
        self.way, self.network, self.mean = way, network, mean

    def __call__(self, batch: Batch) -> None:
        self.network.zero_grad()
        features = self.network.encoder(batch.inputs)
        self.way(self.network.losses(features, batch), features, self.network.encoder)


def ours(text: str, variant: str) -> backward_peers.Way:
    """`gradhomog.backward` with a pipeline of its own: `variant` is empty, `features` or `LEVEL`."""
    pipe = gradhomog.pipeline(text)
    level: Literal["parameters", "features"] = "features" if variant == LEVEL else "parameters"

    def way(losses: Sequence[Tensor], features: Tensor, encoder: torch.nn.Module) -> None:
        shown = features if variant else None
        gradhomog.backward(losses, pipe, parameters=encoder, features=shown, level=level)

    return way


def works(texts: Sequence[str], setting: Setting) -> tuple[dict[str, Work], list[str]]:
    """What is timed by label, and lines about what is left out.

    Raises:
        GradhomogError: one of `texts` names nothing.
    """
    found: dict[str, Work] = {
        BY_HAND: Step(backward_peers.by_hand, setting.network(), mean=True),
        SUMMED: Step(backward_peers.summed, setting.network(), mean=True),
    }
    chosen, left_out = loadable(texts, EXPRESSIONS)
    for text in chosen:
        # At the level of features the mean is what it is anyway; and features alone spare the others nothing.
        for variant in ("", "features" if text == "none" else LEVEL):
            label = ", ".join(filter(None, (f"backward {text}", variant)))
            found[label] = Step(ours(text, variant), setting.network(), mean=text == "none")
    for name in ("Mean", "UPGrad"):
        try:
            peers = backward_peers.torchjd(name)
        except ImportError as error:
            left_out.append(str(error))
            continue
        for label, way in peers.items():
            found[label] = Step(way, setting.network(), mean=name == "Mean")
    return found, list(dict.fromkeys(left_out))


class Cosine:
    """Of the mean: between what a work left in the encoder's `.grad`, and what the loop by hand does in float64."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._right: Tensor | None = None

    def __call__(self, work: Any) -> float | None:
        if not work.mean:
            return None
        if self._right is None:
            exact = Setting(self.setting.shape, torch.float64)
            step = Step(backward_peers.by_hand, exact.network(), mean=True)
            step(exact.batch(0))
            self._right = gradient(step)
        return float(torch.cosine_similarity(gradient(work), self._right, dim=0))


def gradient(step: Step) -> Tensor:
    """`.grad` of the encoder, `[params]` in float64."""
    found = [parameter.grad for parameter in step.network.encoder.parameters()]
    return torch.cat([grad.double().flatten() for grad in found if grad is not None])


def _trial(texts: Sequence[str], shape: Sequence[int]) -> Trial:
    setting = Setting(shape)
    made, left_out = works(texts, setting)
    return Trial(
        made,
        setting.batch,
        (BY_HAND, SUMMED),
        f"one step: {setting.title}",
        (
            "A step: forward, one loss per linear head, gradients into .grad; no optimizer.",
            f"{BY_HAND}: one backward pass per loss, each adds 1/N of the gradient. chunk 1: parallel_chunk_size=1.",
            "All took their steps in turn on the same batches; the first round does not count.",
            "to …: median over rounds of (its time / the other's time in the same round).",
            table.INTERVAL_NOTE,
            f"{table.MEMORY_NOTE};",
            f"others than {BY_HAND}: what they add.",
            f"cosine: of the mean in the encoder to that of {BY_HAND} in float64, on the batch of the first round.",
            *left_out,
        ),
        at_least=2,
        together=True,
        paired=True,
        cosine=Cosine(setting),
    )


backward_costs = Kernel(FORMS, SHAPES, _trial)
"""Time, memory and accuracy of one step with several losses, as multiples of a hand-written loop's."""
