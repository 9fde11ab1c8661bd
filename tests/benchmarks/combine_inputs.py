"""Gradients and losses of several tasks, new in every round, for the benchmark of `combine`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Gradients:
    """Gradients `[tasks, params]` and losses `[tasks]` of a step."""

    rows: Tensor
    losses: Tensor


class Source:
    """Gradients of each round: normal random numbers that are drawn once, multiplied by a new matrix in each round.

    J = (I + M/√tasks) Z, with Z drawn once and a normal random M in each round: rows of different norms that agree and
    conflict, in a fraction of the time of drawing J. J overwrites the J of the previous round. Memory: Z and J,
    allocated in the first round.
    """

    def __init__(self, tasks: int, params: int) -> None:
        self.tasks, self.params = tasks, params
        self._noise_and_buffer: tuple[Tensor, Tensor] | None = None

    def __call__(self, number: int) -> Gradients:
        if self._noise_and_buffer is None:
            noise = torch.randn(self.tasks, self.params, generator=torch.Generator().manual_seed(0))
            self._noise_and_buffer = noise, torch.empty_like(noise)
        noise, mixed = self._noise_and_buffer
        random = torch.Generator().manual_seed(number + 1)
        mixing = torch.eye(self.tasks) + torch.randn(self.tasks, self.tasks, generator=random) / self.tasks**0.5
        torch.mm(mixing, noise, out=mixed)
        return Gradients(mixed, 0.5 + torch.rand(self.tasks, generator=random))
