"""What every rotation can do: rotate, rotate back, be turned, tell its angle, be saved."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Settings:
    """How far and how fast rotations turn.

    Attributes:
        lr: radians by which one leader step may turn a rotation, whatever m is.
        max_angle: radians from the identity that are never left.
        momentum: of the running means of the closed forms.
        rank: columns of the low-rank Cayley transform; features of the subspace.
    """

    lr: float
    max_angle: float
    momentum: float
    rank: int


# Of an angle, in radians: it is read off a trace, whose rounding a small angle sees under the root.
ROUNDING = 1e-6


class Rotation(ABC):
    """R in SO(m) for row vectors: `rotate(x)` is x Rᵀ, every row x becomes R x.

    `turn(u, v)` is one leader step: raises mean_k ⟨Rᵀ u_k, v_k⟩ for unit vectors `[pairs, m]`, never lowers it.
    Parameters are float64: they are small, and R stays orthogonal to rounding in the dtype of the features.
    """

    saved: tuple[str, ...] = ()

    def __init__(self, features: int, settings: Settings, seed: int) -> None:
        self.features, self.settings, self.seed = features, settings, seed
        self._cast: dict[tuple[torch.dtype, torch.device], tuple[Tensor, ...]] = {}

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """What `rotate` multiplies with, float64; empty while R is the identity."""

    @abstractmethod
    def apply(self, x: Tensor, tensors: tuple[Tensor, ...], transposed: bool) -> Tensor:
        """R x, or Rᵀ x, of rows x, with the tensors in their dtype."""

    @abstractmethod
    def step(self, u: Tensor, v: Tensor) -> None:
        """One leader step, of float64 `[pairs, m]`; changes only what is saved, and never in place."""

    @property
    @abstractmethod
    def defect(self) -> float:
        """m − trace R ≥ 0, from which the angle is read."""

    def rotate(self, x: Tensor, transposed: bool = False) -> Tensor:
        """R x (or Rᵀ x) of each row of `[..., m]`, in its dtype; differentiable in x. Half precision in float32."""
        if not self.tensors:
            return x
        dtype = x.dtype if x.dtype.itemsize >= 4 else torch.float32
        place = (dtype, x.device)
        if place not in self._cast:
            self._cast[place] = tuple(tensor.to(x.device, dtype) for tensor in self.tensors)
        return self.apply(x.to(dtype), self._cast[place], transposed).to(x.dtype)

    def turn(self, u: Tensor, v: Tensor) -> None:
        """One leader step; taken back where it would leave `max_angle`."""
        angle, state = self.angle, self.state_dict()
        self.step(u.double(), v.double())
        self.changed()
        if self.angle > max(angle, self.settings.max_angle) + ROUNDING:
            self.load_state_dict(state)

    def changed(self) -> None:
        """Forget what was derived from the parameters."""
        self._cast.clear()

    @property
    def angle(self) -> float:
        """2 asin(‖R − I‖_F / √8) in [0, π]: the angle of a plane rotation; of several planes, their root sum of squares
        where small."""
        return 2 * math.asin(min(1.0, math.sqrt(max(self.defect, 0.0) / 4)))

    def alignment(self, u: Tensor, v: Tensor) -> float:
        """Mean inner product ⟨Rᵀ u_k, v_k⟩."""
        return float((self.rotate(u, transposed=True) * v).sum(dim=1).mean())

    def state_dict(self) -> dict[str, Any]:
        return {"features": self.features, "seed": self.seed, **{name: getattr(self, name) for name in self.saved}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self.saved:
            setattr(self, name, state[name])
        self.changed()


class Factored(Rotation):
    """R = I + L C Zᵀ with L, Z `[m, s]` and C `[s, s]`: O(m s) for a vector, and never an m × m matrix."""

    def apply(self, x: Tensor, tensors: tuple[Tensor, ...], transposed: bool) -> Tensor:
        left, core, right = tensors
        return x + (x @ left) @ core @ right.T if transposed else x + (x @ right) @ core.T @ left.T

    @property
    def defect(self) -> float:
        if not self.tensors:
            return 0.0
        left, core, right = self.tensors
        return -float((core * (left.T @ right)).sum())


def cayley(skew: Tensor) -> Tensor:
    """(I − A/2)⁻¹ (I + A/2) of a skew-symmetric A: a rotation, whose angles are 2 atan of half of A's."""
    identity = torch.eye(len(skew), dtype=skew.dtype, device=skew.device)
    rotation: Tensor = torch.linalg.solve(identity - skew / 2, identity + skew / 2)
    return rotation
