"""A diffusion model of 8 × 8 digits, with groups of time steps as tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn

from gradhomog import ProblemRun, ProblemSpec, hookimpl
from gradhomog_data.networks.perceptron import mlp
from gradhomog_data.problems._held_out import HeldOutProblem, specification
from gradhomog_data.problems._small_digits import PIXELS, splits

GROUPS, PER_GROUP = 4, 25
STEPS = GROUPS * PER_GROUP

TASKS = tuple(f"t {start}-{start + PER_GROUP - 1}" for start in range(0, STEPS, PER_GROUP))

MIN_SNR_WEIGHTS = {"t 0-24": 0.591, "t 25-49": 1.0, "t 50-74": 1.0, "t 75-99": 1.0}
"""Min-SNR weights of noise prediction (Hang et al. 2023, arXiv 2303.09556, with γ = 5): min(SNR, γ) / SNR with
SNR = ā_t / (1 − ā_t), mean over the time steps of a group; for `static(weights=...)`."""

ANGLES = 0.1, 0.98
"""First and last angle of the cosine schedule, in units of π/2. Below the first, the noise has a standard deviation of
less than 0.156, near the distance 0.125 of the grey levels of the digits."""

BATCH = 32
"""Digits of each group per step."""

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
            run, TASKS, examples, lambda: nn.Sequential(*mlp((PIXELS + 2 * FREQUENCIES,), PIXELS, run.width)),
            "Scores: mean squared errors of the predicted noise, relative to the best linear denoiser.",
        )  # fmt: skip
        self.starts = PER_GROUP * torch.arange(GROUPS).repeat_interleave(BATCH)

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


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return specification(
        Diffusion,
        "a diffusion model of 8 × 8 digits, with groups of time steps as tasks",
        "Ho, Jain, Abbeel 2020, arXiv:2006.11239",
        width=128, steps=600, outer_lr=0.003,
    )  # fmt: skip
