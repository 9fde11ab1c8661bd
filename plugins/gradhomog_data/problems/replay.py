"""Joint replay, a negative control: old and new classes are learned together, and nothing should gain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from annotated_types import Ge
from torch import Tensor, cat, nn
from torch.nn.functional import cross_entropy

from gradhomog import ProblemRun, ProblemSpec, hookimpl
from gradhomog_data.networks.perceptron import mlp
from gradhomog_data.problems._held_out import HeldOutProblem, specification
from gradhomog_data.problems._small_digits import CLASSES, PIXELS, splits

OLD, NEW = "old", "new"

FIRST_NEW, BATCH = 5, 64
"""The first of the new classes; examples of each task per step."""


class Replay(HeldOutProblem):
    """The digits 0 to 4 ("old") and 5 to 9 ("new") of 8 × 8 pixels are classified by one network with one head.

    Each task has its own batch, as in replay of stored examples, but all examples are available, and both tasks are of
    equal size and difficulty. A method that gains here gains by another learning rate, or by chance.

    Args:
        seed: of the division of the digits.
    """

    metric = "accuracy"

    def __init__(self, run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0) -> None:
        super().__init__(
            run, (OLD, NEW), splits(seed), lambda: nn.Sequential(*mlp((PIXELS,), CLASSES, run.width)),
            "A negative control: two halves of the digits, learned together.",
        )  # fmt: skip
        pixels, labels = self.splits["train"]
        old = labels < FIRST_NEW
        self.parts = [(pixels[part], labels[part]) for part in (old, ~old)]

    def losses(self, index: int) -> dict[str, Tensor]:
        random = self.random(index)
        chosen = [self.batch(len(labels), BATCH, random) for _, labels in self.parts]
        pixels, targets = zip(*((x[i], y[i]) for (x, y), i in zip(self.parts, chosen, strict=True)), strict=True)
        outputs = self.network(cat(pixels)).split(BATCH)
        return {
            name: cross_entropy(output, target)
            for name, output, target in zip(self.tasks, outputs, targets, strict=True)
        }

    def scores(self, *split: Tensor) -> Mapping[str, float]:
        pixels, labels = split
        correct = (self.network(pixels).argmax(1) == labels).double()
        old = labels < FIRST_NEW
        return {OLD: float(correct[old].mean()), NEW: float(correct[~old].mean())}


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return specification(
        Replay,
        "joint replay of old and new digits of 8 × 8 pixels, a negative control",
        width=32, steps=400, outer_lr=0.003,
    )  # fmt: skip
