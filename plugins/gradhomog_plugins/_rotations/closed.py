"""Rotations in closed form of directions that follow the gradients slowly."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from gradhomog_plugins._rotations.base import Factored, Settings, angle_of

# A step that turns R too far is halved until it does not; exactly as far is not too far.
HALVINGS = 40
ROUNDING = 1e-6


class Closed(Factored):
    """R is the smallest rotation from followers of v to followers of u, unit vectors `[pairs, m]`.

    Both start at the first v, so that R starts at the identity; in a step each goes `lr` along the great circle
    towards its own, or less where R would turn by more. Where gradients are noise the followers stay about
    where they are; where they persist R ends at Rᵀ u = v.
    """

    saved = ("follower_u", "follower_v")

    def __init__(self, features: int, settings: Settings, seed: int) -> None:
        super().__init__(features, settings, seed)
        self.follower_u = self.follower_v = torch.zeros(0, features, dtype=torch.float64)

    @abstractmethod
    def make(self, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """The factors of the smallest rotation of the v to the u, no further than `max_angle`; none: the identity."""

    def step(self, u: Tensor, v: Tensor) -> None:
        if self.follower_v.shape != v.shape:  # the first
            self.follower_u = self.follower_v = v
        old_u, old_v = self.follower_u.to(u.device), self.follower_v.to(v.device)
        reach, factors = self.settings.lr, self.tensors
        for _ in range(HALVINGS):
            new = follow(old_u, u, reach), follow(old_v, v, reach)
            if angle_of(relative_defect(factors, self.make(*new))) <= self.settings.lr * (1 + ROUNDING):
                self.follower_u, self.follower_v = new
                return
            reach /= 2

    def shrink(self) -> None:
        """Nothing: `make` keeps within the angle."""

    def derive(self) -> tuple[Tensor, ...]:
        return self.make(self.follower_u, self.follower_v) if len(self.follower_v) else ()


def follow(follower: Tensor, goal: Tensor, reach: float) -> Tensor:
    """Unit vectors after going up to `reach` radians along the great circle to a goal; opposite to it they stay."""
    cosine = (follower * goal).sum(1, keepdim=True)
    across = goal - cosine * follower
    sine = across.norm(dim=1, keepdim=True)
    going = sine > 0
    angle = torch.atan2(sine, cosine).clamp(max=reach)
    moved = torch.cos(angle) * follower + torch.sin(angle) * across / torch.where(going, sine, 1.0)
    return torch.where(going, moved / moved.norm(dim=1, keepdim=True), follower)


def relative_defect(first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> float:
    """m − trace(R₁ᵀ R₂) for rotations I + L C Zᵀ given by their factors."""
    total = sum(-float((core * (left.T @ right)).sum()) for left, core, right in (f for f in (first, second) if f))
    if first and second:
        (l1, c1, z1), (l2, c2, z2) = first, second
        total -= float(((z2.T @ z1) @ c1.T @ (l1.T @ l2) * c2.T).sum())
    return total if math.isfinite(total) else 4.0
