"""Machine unlearning: a trained classifier forgets one digit and retains the others."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from gradhomog import ProblemRun, ProblemSpec, hookimpl
from gradhomog_data.networks.perceptron import mlp
from gradhomog_data.problems._held_out import HeldOutProblem, initialized, specification
from gradhomog_data.problems._small_digits import CLASSES, PIXELS, splits

RETAIN, FORGET = "retain", "forget"

BATCH = 64
"""Examples of each task per step."""

PRETRAINING_STEPS, PRETRAINING_RATE = 300, 0.005


class Forgetting(HeldOutProblem):
    """A multilayer perceptron, trained on ten digits of 8 × 8 pixels, is trained further with two losses.

    "retain" is the cross-entropy on the other nine digits. "forget" is the Kullback-Leibler divergence from the uniform
    distribution to the outputs for the forgotten digit, Σ_c 1/10 log(1/10 / p_c).

    Scores on held-out digits: for "retain", 1 minus the mean probability of the class, the expected error of a class
    that is drawn from the outputs, which varies less than the error of the most probable class. For "forget", the mean
    total variation distance between outputs and the uniform distribution. (The probability of the forgotten digit above
    chance is 0 after a few steps with any weights.)

    Source of the setting: SAGO (arXiv 2604.14808), there on large networks.

    Args:
        digit: the forgotten digit.
        seed: of the division of the digits; the trained classifier depends on it and on the seed of the run.
    """

    def __init__(
        self, run: ProblemRun, *, digit: Annotated[int, Ge(0), Le(9)] = 3, seed: Annotated[int, Ge(0)] = 0
    ) -> None:
        self.digit = digit
        super().__init__(
            run, (RETAIN, FORGET), splits(seed), lambda: nn.Sequential(*mlp((PIXELS,), CLASSES, run.width)),
            f"A classifier of ten digits forgets the {digit}.",
        )  # fmt: skip
        self.network.load_state_dict(pretrained(run.seed, run.width, seed))
        pixels, labels = self.splits["train"]
        kept = labels != digit
        self.retained, self.forgotten = (pixels[kept], labels[kept]), pixels[~kept]

    def losses(self, index: int) -> dict[str, Tensor]:
        random, (pixels, labels) = self.random(index), self.retained
        kept, lost = (self.batch(len(part), BATCH, random) for part in (pixels, self.forgotten))
        log_probabilities = self.network(torch.cat([pixels[kept], self.forgotten[lost]])).log_softmax(1)
        divergence = -log_probabilities[BATCH:].mean() - math.log(CLASSES)
        return {RETAIN: nll_loss(log_probabilities[:BATCH], labels[kept]), FORGET: divergence}

    def scores(self, *split: Tensor) -> Mapping[str, float]:
        pixels, labels = split
        probabilities, lost = self.network(pixels).softmax(1), labels == self.digit
        return {
            RETAIN: float(1 - probabilities.gather(1, labels[:, None])[~lost].mean()),
            FORGET: float((probabilities[lost] - 1 / CLASSES).abs().sum(1).mean() / 2),
        }


@functools.cache  # one process runs many trainings from the same classifier
def pretrained(seed: int, width: int, division: int) -> Mapping[str, Any]:
    """Return the state of a classifier of all ten digits."""
    pixels, labels = splits(division)["train"]
    network = initialized(lambda: nn.Sequential(*mlp((PIXELS,), CLASSES, width)), seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=PRETRAINING_RATE)
    random = torch.Generator().manual_seed(seed)
    for _ in range(PRETRAINING_STEPS):
        chosen = torch.randint(len(labels), (2 * BATCH,), generator=random)
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(network(pixels[chosen]), labels[chosen]))
        optimizer.step()
    return network.state_dict()


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return specification(
        Forgetting,
        "a classifier of 8 × 8 digits forgets one digit and retains the others",
        "the setting of SAGO, arXiv:2604.14808",
        width=32, steps=300, outer_lr=0.03,
    )  # fmt: skip
