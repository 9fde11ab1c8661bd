"""Problems on the 1797 handwritten digits of 8 × 8 pixels in scikit-learn: diffusion, forgetting and joint replay."""

import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from gradhomog import ProblemRun
from gradhomog_data._packages import require_package
from gradhomog_data._seeding import generator
from gradhomog_data.networks import mlp
from gradhomog_data.problems._held_out import HeldOutProblem, Splits, divide, initialized

BATCH = 64
"""Examples of each task per step, for forgetting and replay."""

CLASSES, PIXELS = 10, 64

TRAIN, VALIDATION = 900, 297
"""Numbers of digits for training and for validation; the other 600 are for test."""


@functools.cache  # one process runs many trainings on the same data
def load() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return pictures `[1797, 8, 8]` with values of 0 to 255, and their classes.

    Raises:
        DataError: scikit-learn is not installed.
    """
    require_package("digits of 8 × 8 pixels come from", "sklearn", "scikit-learn", "problems")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pictures = np.rint(np.asarray(pixels) * (255 / 16)).astype(np.uint8)
    return pictures.reshape(-1, 8, 8), np.asarray(labels, dtype=np.int64)


def splits(seed: int) -> Splits:
    """Return pixels `[n, 64]` in [-1, 1] and classes `[n]` of each split, divided at random with `seed`."""
    pictures, labels = load()
    pixels = torch.from_numpy(pictures).flatten(1).float().div_(127.5).sub_(1.0).numpy()
    order = generator(seed).permutation(len(labels))
    return divide((TRAIN, VALIDATION, len(labels) - TRAIN - VALIDATION), pixels[order], labels[order])


GROUPS, PER_GROUP = 4, 25
STEPS = GROUPS * PER_GROUP

TIMES = tuple(f"t {start}-{start + PER_GROUP - 1}" for start in range(0, STEPS, PER_GROUP))
"""Names of the groups of time steps."""

MIN_SNR_WEIGHTS = {"t 0-24": 0.591, "t 25-49": 1.0, "t 50-74": 1.0, "t 75-99": 1.0}
"""Min-SNR weights of noise prediction (Hang et al. 2023, arXiv 2303.09556, with γ = 5): min(SNR, γ) / SNR with
SNR = ā_t / (1 − ā_t), mean over the time steps of a group; for `static(weights=...)`."""

ANGLES = 0.1, 0.98
"""First and last angle of the cosine schedule, in units of π/2. Below the first, the noise has a standard deviation of
less than 0.156, near the distance 0.125 of the grey levels of the digits."""

SCORED = (4, 12, 20)
"""Time steps of each group at which every held-out digit is scored."""

FREQUENCIES = 8


class Diffusion(HeldOutProblem):
    """A multilayer perceptron predicts the noise e in x_t = √ā_t x + √(1 − ā_t) e from x_t and an embedding of t.

    The schedule is a part of the cosine schedule (Nichol & Dhariwal 2021, arXiv 2102.09672) with 100 time steps, in
    groups of 25, the tasks. The loss of a group is the mean squared error at random time steps of the group. The score
    is that error on held-out digits, with fixed noise, over the error of the best linear denoiser: that of a normal
    distribution with mean and covariance of the training digits.

    Args:
        seed: of the division of the digits, and of the noise of validation and test.
    """

    BATCH = 32  # digits of each group per step

    def __init__(self, run: ProblemRun, *, seed: Annotated[int, Ge(0)] = 0) -> None:
        self.schedule = signal_shares()
        angles = torch.arange(STEPS)[:, None] * torch.arange(1, FREQUENCIES + 1) * (torch.pi / STEPS)
        self.embedding = torch.cat([angles.sin(), angles.cos()], 1)
        self.tested = [start + time for start in range(0, STEPS, PER_GROUP) for time in SCORED]
        digits = splits(seed)
        train = digits["train"][0]
        examples = {"train": (train,)} | {
            name: (digits[name][0], *self._scored(digits[name][0], train, torch.Generator().manual_seed(seed)))
            for name in ("validation", "test")
        }
        super().__init__(
            run, TIMES, examples, lambda: nn.Sequential(*mlp((PIXELS + 2 * FREQUENCIES,), PIXELS, run.width)),
            "Scores: mean squared errors of the predicted noise, relative to the best linear denoiser.",
        )  # fmt: skip
        self.starts = PER_GROUP * torch.arange(GROUPS).repeat_interleave(self.BATCH)

    def losses(self, index: int) -> dict[str, Tensor]:
        random, pixels = self.random(index), self.splits["train"][0]
        times = self.starts + torch.randint(PER_GROUP, self.starts.shape, generator=random)
        noise = torch.randn(len(times), PIXELS, generator=random)
        chosen = self.batch(len(pixels), len(times), random)
        inputs = self._inputs(pixels[chosen], times, noise.to(self.device))
        errors = (self._predict(inputs) - noise.to(self.device)).square().view(GROUPS, -1).mean(1)
        return dict(zip(self.tasks, errors.unbind(), strict=True))

    def _predict(self, inputs: Tensor) -> Tensor:
        """Return the predicted noise `[n, 64]`: the network adds to x_t, which is nearly the noise at late times."""
        correction: Tensor = self.network(inputs)
        return inputs[:, :PIXELS] + correction

    def _inputs(self, pixels: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        """Return the noised pixels with the embedding of their times, `[n, 64 + 16]`."""
        share = self.schedule[times, None].to(pixels.device)
        noised = share.sqrt() * pixels + (1 - share).sqrt() * noise
        return torch.cat([noised, self.embedding[times].to(pixels.device)], 1)

    def _scored(self, pixels: Tensor, train: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs and noise for the score, `[times, n, ...]`, and the error of the linear denoiser `[times]`."""
        inputs, noises, errors = [], [], []
        mean, covariance = train.mean(0), train.T.cov()
        for time in self.tested:
            noise = torch.randn(pixels.shape, generator=random)
            noised = self._inputs(pixels, torch.full((len(pixels),), time), noise)
            share = self.schedule[time]
            total = share * covariance + (1 - share) * torch.eye(PIXELS)
            centred = noised[:, :PIXELS] - share.sqrt() * mean
            expected = (1 - share).sqrt() * torch.linalg.solve(total, centred.T).T
            inputs.append(noised)
            noises.append(noise)
            errors.append((expected - noise).square().mean())
        return torch.stack(inputs), torch.stack(noises), torch.stack(errors)

    def scores(self, *split: Tensor) -> Mapping[str, float]:
        _, inputs, noise, linear = split
        errors = (self._predict(inputs.flatten(0, 1)).view_as(noise) - noise).square().mean((1, 2))
        ratios = errors.view(GROUPS, -1).mean(1) / linear.view(GROUPS, -1).mean(1)
        return dict(zip(self.tasks, ratios.tolist(), strict=True))


def signal_shares() -> Tensor:
    """Return ā_t of every time step, `[100]`."""
    first, last = ANGLES
    return torch.linspace(first, last, STEPS).mul(torch.pi / 2).cos().square()


RETAIN, FORGET = "retain", "forget"

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
        # Rounding leads to differences below zero, which a divergence is not, and which methods of losses refuse.
        divergence = (-log_probabilities[BATCH:].mean() - math.log(CLASSES)).clamp_min(0)
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


OLD, NEW = "old", "new"

FIRST_NEW = 5
"""The first of the new classes."""


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
        outputs = self.network(torch.cat(pixels)).split(BATCH)
        return {
            name: cross_entropy(output, target)
            for name, output, target in zip(self.tasks, outputs, targets, strict=True)
        }

    def scores(self, *split: Tensor) -> Mapping[str, float]:
        pixels, labels = split
        correct = (self.network(pixels).argmax(1) == labels).double()
        old = labels < FIRST_NEW
        return {OLD: float(correct[old].mean()), NEW: float(correct[~old].mean())}
