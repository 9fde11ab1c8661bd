"""A toy policy gradient with three rewards of unequal scale and frequency, which partly conflict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor, nn

from gradhomog import ProblemRun, ProblemSpec, hookimpl
from gradhomog_data._seeding import generator
from gradhomog_data.networks.perceptron import mlp
from gradhomog_data.problems._held_out import HeldOutProblem, divide, specification

TASKS = ("dense", "rare", "cost")

CONTEXT, ACTIONS = 8, 6

COUNTS = (4096, 1024, 4096)
"""Contexts for training, validation and test."""

LARGEST = (1.0, 20.0, 0.1)
"""The largest value of each reward. The reward "rare" is 0 or 20."""

RARITY, CONFLICT, BATCH = 0.1, 0.6, 128
"""Largest probability of the rare reward; correlation of the cost with the dense reward; contexts per step."""


class Policy(HeldOutProblem):
    """A softmax policy chooses one of six actions in a context, and receives three rewards.

    The expected rewards are smooth functions of context and action: "dense" in [0, 1], with noise; "rare", 20 with a
    probability of at most 1/10 and else 0; "cost" in [0, 0.1], 0.1 minus a cost that is correlated with the dense
    reward. In every step, actions are drawn for 128 contexts. The gradient of the loss of a reward r is that of
    REINFORCE, −mean((r − r̄) ∇log π), with the mean r̄ of the batch as the baseline. The value of the loss is the mean
    shortfall r_max − r, so that methods that read losses have a meaningful, positive number.

    Scores are exact, because the expected rewards of all actions are known: for every reward, in units of its standard
    deviation over held-out contexts and actions, the value of the policy that is best for the mean of the rewards in
    these units, minus that of the trained policy. All are divided by the mean of this over the rewards for the uniform
    policy. Their mean is 0 for the best policy and 1 for the uniform one; one of them can be negative.

    Args:
        seed: of the contexts and of the functions.
    """

    def __init__(self, run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0) -> None:
        random = generator(seed)
        contexts = random.standard_normal((sum(COUNTS), CONTEXT))
        dense, rare, cost = (_function(contexts, random) for _ in TASKS)
        cost = CONFLICT * -dense + np.sqrt(1 - CONFLICT**2) * cost
        shares = 1 / (1 + np.exp(-2 * np.stack([dense, rare, cost], 2)))
        expected = shares * LARGEST * [1, RARITY, 1]
        super().__init__(
            run, TASKS, divide(COUNTS, contexts.astype(np.float32), expected.astype(np.float32)),
            lambda: nn.Sequential(*mlp((CONTEXT,), ACTIONS, run.width)),
            "Scores: regret to the policy that is best for the mean of the normalized rewards; 1 on average is the "
            "uniform policy.",
        )  # fmt: skip
        self.largest = torch.tensor(LARGEST, device=run.device)

    def losses(self, index: int) -> dict[str, Tensor]:
        random, (contexts, expected) = self.random(index), self.splits["train"]
        chosen = self.batch(len(contexts), BATCH, random)
        log_policy = self.network(contexts[chosen]).log_softmax(1)
        uniform = torch.rand(BATCH, 3, generator=random).to(self.device)
        # The action is the number of cumulated probabilities below a uniform number.
        cumulated = log_policy.detach().exp().cumsum(1)[:, :-1]
        actions = (cumulated < uniform[:, :1]).sum(1, keepdim=True)
        rewards = expected[chosen, actions[:, 0]]
        rare = self.largest[1] * (uniform[:, 1] * self.largest[1] < rewards[:, 1])
        noisy = rewards[:, 0] + uniform[:, 2] - 0.5
        rewards = torch.stack([noisy, rare, rewards[:, 2]], 1)
        surrogates = -((rewards - rewards.mean(0)) * log_policy.gather(1, actions)).mean(0)
        losses = surrogates - surrogates.detach() + (self.largest - rewards).mean(0)
        return dict(zip(self.tasks, losses.unbind(), strict=True))

    def scores(self, *split: Tensor) -> Mapping[str, float]:
        contexts, expected = split
        rewards = expected / expected.std((0, 1))
        value = (self.network(contexts).softmax(1)[..., None] * rewards).sum(1).mean(0)
        best = rewards.mean(2).argmax(1)
        optimum = rewards[torch.arange(len(best), device=best.device), best].mean(0)
        regrets = (optimum - value) / (optimum - rewards.mean((0, 1))).mean()
        return dict(zip(self.tasks, regrets.tolist(), strict=True))


def _function(contexts: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Return a random smooth function of contexts and actions, `[contexts, actions]`, with variance about 1."""
    features = np.tanh(contexts @ random.standard_normal((CONTEXT, 16)) / 2)
    return features @ random.standard_normal((16, ACTIONS)) / 2.5


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return specification(
        Policy,
        "a toy policy gradient with three rewards of unequal scale and frequency, which partly conflict",
        width=32, steps=800, outer_lr=0.005,
    )  # fmt: skip
