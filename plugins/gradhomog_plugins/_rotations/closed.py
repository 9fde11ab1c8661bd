"""Rotations in closed form: a function of what u and v have been lately, their running means."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from gradhomog_plugins._rotations.base import Factored, Settings


class Closed(Factored):
    """Keeps running means of u and v `[pairs, m]` and the number of steps; R is a function of these.

    R turns by at most min(max_angle, lr · steps), so that the leader is slow at first too.
    """

    saved = ("mean_u", "mean_v", "steps")

    def __init__(self, features: int, settings: Settings, seed: int) -> None:
        super().__init__(features, settings, seed)
        self.mean_u = self.mean_v = torch.zeros(0, features, dtype=torch.float64)
        self.steps = 0
        self._tensors: tuple[Tensor, ...] | None = ()

    @property
    def allowed(self) -> float:
        return min(self.settings.max_angle, self.settings.lr * self.steps, math.pi)

    @abstractmethod
    def make(self) -> tuple[Tensor, ...]:
        """The factors of R; none where no direction is to be turned."""

    def turn(self, u: Tensor, v: Tensor) -> None:
        self.step(u.double(), v.double())
        self.changed()

    def step(self, u: Tensor, v: Tensor) -> None:
        if self.mean_u.shape == u.shape:
            keep = self.settings.momentum
            self.mean_u = keep * self.mean_u.to(u.device) + (1 - keep) * u
            self.mean_v = keep * self.mean_v.to(v.device) + (1 - keep) * v
        else:  # the first, or another number of pairs
            self.mean_u, self.mean_v = u.clone(), v.clone()
        self.steps += 1

    def changed(self) -> None:
        super().changed()
        self._tensors = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        if self._tensors is None:
            self._tensors = self.make()
        return self._tensors
