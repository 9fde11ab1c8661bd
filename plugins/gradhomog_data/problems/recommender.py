"""A generated recommender: the rare conversions are the primary task, and frequent events are auxiliary tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from gradhomog import ProblemRun, ProblemSpec, hookimpl
from gradhomog_data._seeding import generator
from gradhomog_data.networks.perceptron import mlp
from gradhomog_data.problems._held_out import HeldOutProblem, Splits, divide, specification

CONVERSION = "conversion"
TASKS = (CONVERSION, "click", "dwell", "rating")
BINARY = (CONVERSION, "click")

USERS, ITEMS, FACTORS, EMBEDDED = 200, 150, 3, 8

COUNTS = (16384, 4096, 8192)
"""Pairs of a user and an item for training, validation and test."""

RELATION = {CONVERSION: 1.0, "click": 0.8, "dwell": 0.5, "rating": -0.2}
"""Correlation of the preferences of a user for each event with those for conversion."""

CLICK_RATE, CONVERSION_RATE = 0.3, 0.04

BATCH = 128


class Recommender(HeldOutProblem):
    """A network with embeddings of users and items predicts four events of a pair.

    Users and items have latent factors; the factors of a user for each event are correlated with those for conversion
    as in `RELATION`, so that "click" and "dwell" help a primary task with 4 % positive labels, and "rating" competes
    with it. "conversion" and "click" have binary labels with logits linear in the product of the factors; "dwell", the
    logarithm of a time, and "rating" are that product with noise, with a standard deviation of 1. All events of a pair
    are observed.

    The score is the log loss of conversion on other pairs of the same users and items, over that of the rate of
    conversion in the training data. The auxiliary tasks have no score.

    Args:
        seed: of the factors, pairs and events.
    """

    def __init__(self, run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0) -> None:
        super().__init__(
            run, TASKS, events(seed), lambda: Embeddings(run.width),
            f"Only {CONVERSION} is scored; the other tasks are auxiliary.",
        )  # fmt: skip
        rate = self.splits["train"][1][:, 0].mean()
        self.base = rate.log() - (1 - rate).log()

    def losses(self, index: int) -> dict[str, Tensor]:
        pairs, events = self.splits["train"]
        chosen = self.batch(len(pairs), BATCH, self.random(index))
        outputs, targets = self.network(pairs[chosen]).unbind(1), events[chosen].unbind(1)
        return {
            name: (binary_cross_entropy_with_logits if name in BINARY else mse_loss)(output, target)
            for name, output, target in zip(self.tasks, outputs, targets, strict=True)
        }

    def scores(self, *split: Tensor) -> Mapping[str, float]:
        pairs, events = split
        converted = events[:, 0]
        log_loss = binary_cross_entropy_with_logits(self.network(pairs)[:, 0], converted)
        base = binary_cross_entropy_with_logits(self.base.expand_as(converted), converted)
        return {CONVERSION: float(log_loss / base)}


class Embeddings(nn.Module):
    """A multilayer perceptron on the embeddings of a user and an item and their product, with four outputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, EMBEDDED), nn.Embedding(ITEMS, EMBEDDED)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)
        self.layers = nn.Sequential(*mlp((3 * EMBEDDED,), len(TASKS), width))

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        outputs: Tensor = self.layers(torch.cat([user, item, user * item], 1))
        return outputs


def events(seed: int) -> Splits:
    """Return pairs `[n, 2]` and their events `[n, 4]` for each split; no pair occurs twice."""
    random = generator(seed)
    chosen = random.permutation(USERS * ITEMS)[: sum(COUNTS)]
    pairs = np.stack(np.divmod(chosen, ITEMS), 1)
    users, items = random.standard_normal((USERS, FACTORS)), random.standard_normal((ITEMS, FACTORS))
    columns = []
    for name, relation in RELATION.items():
        own = relation * users + np.sqrt(1 - relation**2) * random.standard_normal(users.shape)
        signal = (own[pairs[:, 0]] * items[pairs[:, 1]]).sum(1) / np.sqrt(FACTORS)
        if name in BINARY:
            # Labels are 1 where signal and logistic noise exceed the quantile of the rate.
            noisy = 3 * signal + random.logistic(size=len(signal))
            rate = CONVERSION_RATE if name == CONVERSION else CLICK_RATE
            columns.append(noisy > np.quantile(noisy, 1 - rate))
        else:
            columns.append((signal + 0.5 * random.standard_normal(len(signal))) / np.sqrt(1.25))
    return divide(COUNTS, pairs, np.stack(columns, 1).astype(np.float32))


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return specification(
        Recommender,
        "a generated recommender with rare conversions as the primary task and three auxiliary tasks",
        width=32, steps=600, outer_lr=0.015,
    )  # fmt: skip
