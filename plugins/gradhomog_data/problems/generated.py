"""Generated problems: a policy gradient, a recommender, regressions through one unit, regressions of unequal scale."""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from gradhomog import Examples, MultiTaskData, ProblemRun
from gradhomog_data._seeding import generator
from gradhomog_data.networks import mlp
from gradhomog_data.problems._held_out import HeldOutProblem, Splits, divide
from gradhomog_data.problems._table_layers import Architecture, table_layers

CONTEXT, ACTIONS = 8, 6

LARGEST = (1.0, 20.0, 0.1)
"""The largest value of each reward. The reward "rare" is 0 or 20."""


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

    TASKS = ("dense", "rare", "cost")

    COUNTS = (4096, 1024, 4096)
    """Contexts for training, validation and test."""

    RARITY, CONFLICT, BATCH = 0.1, 0.6, 128
    """Largest probability of the rare reward; correlation of the cost with the dense reward; contexts per step."""

    def __init__(self, run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0) -> None:
        random = generator(seed)
        contexts = random.standard_normal((sum(self.COUNTS), CONTEXT))
        dense, rare, cost = (_function(contexts, random) for _ in self.TASKS)
        cost = self.CONFLICT * -dense + np.sqrt(1 - self.CONFLICT**2) * cost
        shares = 1 / (1 + np.exp(-2 * np.stack([dense, rare, cost], 2)))
        expected = shares * LARGEST * [1, self.RARITY, 1]
        super().__init__(
            run, self.TASKS, divide(self.COUNTS, contexts.astype(np.float32), expected.astype(np.float32)),
            lambda: nn.Sequential(*mlp((CONTEXT,), ACTIONS, run.width)),
            "Scores: regret to the policy that is best for the mean of the normalized rewards; 1 on average is the "
            "uniform policy.",
        )  # fmt: skip
        self.largest = torch.tensor(LARGEST, device=run.device)

    def losses(self, index: int) -> dict[str, Tensor]:
        random, (contexts, expected) = self.random(index), self.splits["train"]
        chosen = self.batch(len(contexts), self.BATCH, random)
        log_policy = self.network(contexts[chosen]).log_softmax(1)
        uniform = torch.rand(self.BATCH, 3, generator=random).to(self.device)
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


CONVERSION = "conversion"
EVENTS = (CONVERSION, "click", "dwell", "rating")
BINARY = (CONVERSION, "click")

USERS, ITEMS, FACTORS, EMBEDDED = 200, 150, 3, 8

PAIRS = (16384, 4096, 8192)
"""Pairs of a user and an item for training, validation and test."""

RELATION = {CONVERSION: 1.0, "click": 0.8, "dwell": 0.5, "rating": -0.2}
"""Correlation of the preferences of a user for each event with those for conversion."""

CLICK_RATE, CONVERSION_RATE = 0.3, 0.04


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

    BATCH = 128

    def __init__(self, run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0) -> None:
        super().__init__(
            run, EVENTS, events(seed), lambda: Embeddings(USERS, ITEMS, len(EVENTS), run.width),
            f"Only {CONVERSION} is scored; the other tasks are auxiliary.",
        )  # fmt: skip
        rate = self.splits["train"][1][:, 0].mean()
        self.base = rate.log() - (1 - rate).log()

    def losses(self, index: int) -> dict[str, Tensor]:
        pairs, events = self.splits["train"]
        chosen = self.batch(len(pairs), self.BATCH, self.random(index))
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
    """A network on the embeddings of a user and an item and their product, with several outputs."""

    def __init__(self, users: int, items: int, outputs: int, width: int, architecture: Architecture = None) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, EMBEDDED), nn.Embedding(items, EMBEDDED)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)
        self.layers = table_layers(architecture, 3 * EMBEDDED, outputs, width)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        outputs: Tensor = self.layers(torch.cat([user, item, user * item], 1))
        return outputs


def events(seed: int) -> Splits:
    """Return pairs `[n, 2]` and their events `[n, 4]` for each split; no pair occurs twice."""
    random = generator(seed)
    chosen = random.permutation(USERS * ITEMS)[: sum(PAIRS)]
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
    return divide(PAIRS, pairs, np.stack(columns, 1).astype(np.float32))


INPUTS = 8
"""Inputs of the regressions."""

NORMS, COSINE, UNIT_NOISE = (1.0, 1.2, 1.5), -0.2, 0.3
"""Norms of the three coefficient vectors, the cosine of each pair, and the standard deviation of the noise."""

DIRECTIONS = 20_000
"""Directions of the hidden unit among which the balanced point is searched."""


class SharedUnit(HeldOutProblem):
    """Targets y_t = b_t · x + noise of three tasks are predicted by a_t (w · x), with one hidden unit w and no bias.

    The inputs are standard normal, so that the best a_t for w leaves the share 1 − cos²(w, b_t) of the variance of a
    task: its normalized excess loss. The unit cannot serve all tasks. As the cosines of the b_t are negative, the
    minimizer of a weighted sum of the losses fits some tasks and gives up another: its largest normalized excess loss
    is 0.95 for equal weights and at least 0.82 for all weights. At the balanced point, where it is smallest, it is
    0.65; this point minimizes no weighted sum (Hu et al. 2023, arXiv 2308.13985).

    Every step uses all examples. The score is the largest normalized excess loss on new inputs, the mean of
    (a_t w · x − b_t · x)² over that of (b_t · x)². The notes have its value at the balanced point.

    Args:
        seed: of the coefficients and examples.
    """

    COUNTS = (512, 512, 2048)
    """Examples for training, validation and test."""

    state_selection = "last"

    def __init__(self, run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0) -> None:
        random = generator(seed)
        basis = np.linalg.qr(random.standard_normal((INPUTS, len(NORMS))))[0]
        cosines = np.where(np.eye(len(NORMS), dtype=bool), 1.0, COSINE)
        self.coefficients = basis @ np.linalg.cholesky(cosines).T * NORMS
        x = random.standard_normal((sum(self.COUNTS), INPUTS))
        y = x @ self.coefficients
        y[: self.COUNTS[0]] += UNIT_NOISE * random.standard_normal((self.COUNTS[0], len(NORMS)))
        super().__init__(
            run, [f"task {number}" for number in range(len(NORMS))],
            divide(self.COUNTS, x.astype(np.float32), y.astype(np.float32)), OneUnit,
            f"The score of the balanced point is {balanced(self.coefficients, random):.3f}.",
        )  # fmt: skip

    def losses(self, index: int) -> dict[str, Tensor]:
        x, y = self.splits["train"]
        return dict(zip(self.tasks, (self.network(x) - y).square().mean(0).unbind(), strict=True))

    def scores(self, *split: Tensor) -> Mapping[str, float]:
        x, y = split
        excess = (self.network(x) - y).square().mean(0) / y.square().mean(0)
        return {"largest excess": float(excess.max())}


class OneUnit(nn.Module):
    """The outputs a_t (w · x); all parameters are drawn from a standard normal distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = nn.Parameter(torch.randn(INPUTS, 1))
        self.outputs = nn.Parameter(torch.randn(1, len(NORMS)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.unit @ self.outputs


def balanced(coefficients: NDArray[np.float64], random: np.random.Generator) -> float:
    """Return the smallest maximum over the tasks of 1 − cos²(w, b_t), of random directions w in the span of the b_t.

    20,000 directions give the minimum to 0.01.
    """
    w = coefficients @ random.standard_normal((coefficients.shape[1], DIRECTIONS))
    cosines = coefficients.T @ w / np.linalg.norm(w, axis=0) / np.linalg.norm(coefficients, axis=0)[:, None]
    return float((1 - np.square(cosines)).max(0).min())


FEATURES = 24

EXAMPLES = (512, 256, 1024)
"""Examples for training, validation and test."""

LARGEST_SCALE, GAIN, NOISE = 10.0, (0.5, 2.0), 0.1
"""Standard deviation of the task of largest scale; range of the gains; noise relative to the standard deviation."""


def unequal_regressions(
    run: ProblemRun, *, tasks: Annotated[int, Ge(2)] = 5, seed: Annotated[int, Ge(0)] = 0
) -> MultiTaskData:
    """Return targets y_t = s_t (a_t · tanh(g_t W x) + noise) of standard normal inputs x with 8 entries.

    The rows of W are random directions shared by the tasks; a_t is random. Gains g_t from 1/2, nearly linear, to 2
    make tasks unequally difficult. Standard deviations s_t from 1/10 to 10 make their losses differ by four orders of
    magnitude. Both are spaced logarithmically, and the order of the scales is random with respect to that of the gains.
    The noise has a tenth of the standard deviation of the signal, so that R² is at most 0.99.

    Args:
        tasks: number of regressions.
        seed: of all random choices.
    """
    random = generator(seed)
    x = random.standard_normal((sum(EXAMPLES), INPUTS))
    directions = random.standard_normal((INPUTS, FEATURES)) / np.sqrt(INPUTS)
    gains, scales = (
        np.geomspace(*GAIN, tasks),
        random.permutation(np.geomspace(1 / LARGEST_SCALE, LARGEST_SCALE, tasks)),
    )
    targets = []
    for gain, scale in zip(gains, scales, strict=True):
        signal = np.tanh(gain * x @ directions) @ random.standard_normal(FEATURES)
        signal = (signal - signal.mean()) / signal.std()
        noisy = scale * (signal + NOISE * random.standard_normal(len(signal)))
        targets.append(noisy[:, None].astype(np.float32))
    splits = divide(EXAMPLES, x.astype(np.float32), *targets)
    train, validation, test = (Examples(inputs, tuple(outputs)) for inputs, *outputs in splits.values())
    names = tuple(f"scale {scale:.3g}" for scale in scales)
    note = f"Generated regressions; in the order of difficulty: {', '.join(names)}."
    return MultiTaskData(names, (1,) * tasks, 64, train, validation, test, (note,))
