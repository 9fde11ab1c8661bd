"""What every rotation can do: rotate, rotate back, be turned, tell its angle, be saved."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Settings:
    """How far and how fast rotations turn.

    Attributes:
        lr: radians by which one leader step turns a rotation at most, whatever m is.
        max_angle: radians from the identity that are never left.
        rank: columns of the low-rank Cayley transform; features of the subspace.
        size, decay, start: of the Riemannian steps: how many features, the first, are rotated (None: all); what a step
            multiplies `lr` by; and where they start.
    """

    lr: float
    max_angle: float
    rank: int = 1
    size: int | None = None
    decay: float = 1.0
    start: Literal["identity", "haar"] = "identity"


# Of an alignment and of an angle: both are sums of many products in float64.
ROUNDING = 1e-12


class Rotation(ABC):
    """R in SO(m) for row vectors: `rotate(x)` is x Rᵀ, every row x becomes R x.

    `turn(u, v)` is one leader step for unit vectors `[pairs, m]`: it raises mean_k ⟨Rᵀ u_k, v_k⟩ or leaves R alone,
    turns R by about `lr` at most, and stays within `max_angle`; the Riemannian one takes vectors of any length, and
    longer steps for longer ones. Parameters are float64: they are small, and R stays orthogonal to rounding in the
    dtype of the features.
    """

    saved: tuple[str, ...] = ()

    def __init__(self, features: int, settings: Settings, seed: int) -> None:
        self.features, self.settings, self.seed = features, settings, seed
        self._tensors: tuple[Tensor, ...] | None = None
        self._cast: dict[tuple[torch.dtype, torch.device], tuple[Tensor, ...]] = {}

    @abstractmethod
    def derive(self) -> tuple[Tensor, ...]:
        """From the parameters, what `rotate` multiplies with, float64; empty while R is the identity."""

    @abstractmethod
    def apply(self, x: Tensor, tensors: tuple[Tensor, ...], transposed: bool) -> Tensor:
        """R x, or Rᵀ x, of rows x, with the tensors in their dtype."""

    @abstractmethod
    def step(self, u: Tensor, v: Tensor) -> None:
        """Turn by `lr` at most, wherever that leads; changes only what is saved, and never in place. `[pairs, size]`"""

    @abstractmethod
    def shrink(self) -> None:
        """Scale the angles until `angle` is `max_angle`; likewise."""

    @property
    @abstractmethod
    def defect(self) -> float:
        """m − trace R ≥ 0, from which the angle is read."""

    @property
    def size(self) -> int:
        """How many of the features, the first, are rotated."""
        return self.features

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What was derived, until the parameters change."""
        if self._tensors is None:
            self._tensors = self.derive()
        return self._tensors

    def rotate(self, x: Tensor, transposed: bool = False) -> Tensor:
        """R x (or Rᵀ x) of each row of `[..., m]`, in its dtype; differentiable in x. Half precision in float32."""
        if not self.tensors:
            return x
        dtype = x.dtype if x.dtype.itemsize >= 4 else torch.float32
        place = (dtype, x.device)
        if place not in self._cast:
            self._cast[place] = tuple(tensor.to(x.device, dtype) for tensor in self.tensors)
        rotated = self.apply(x[..., : self.size].to(dtype), self._cast[place], transposed).to(x.dtype)
        return rotated if self.size == self.features else torch.cat([rotated, x[..., self.size :]], dim=-1)

    def turn(self, u: Tensor, v: Tensor) -> None:
        """One leader step; taken back where it, or keeping within `max_angle`, has lowered the alignment."""
        before, state = self.alignment(u, v), self.state_dict()
        self.step(u[:, : self.size], v[:, : self.size])
        self.changed()
        if self.angle > self.settings.max_angle:
            self.shrink()
            self.changed()
        if self.alignment(u, v) < before - ROUNDING:
            self.load_state_dict(state)

    def changed(self) -> None:
        """Forget what was derived from the parameters."""
        self._tensors = None
        self._cast.clear()

    @property
    def angle(self) -> float:
        """2 asin(‖R − I‖_F / √8) in [0, π]: of a plane rotation its angle; of several planes no less than the largest,
        and about their root sum of squares."""
        return angle_of(self.defect)

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


def angle_of(defect: float) -> float:
    """2 asin(√(defect / 4)): ‖R − I‖_F² = 2 (m − trace R)."""
    return 2 * math.asin(min(1.0, math.sqrt(max(defect, 0.0) / 4)))


def cayley(skew: Tensor) -> Tensor:
    """(I − A/2)⁻¹ (I + A/2) of a skew-symmetric A: a rotation, whose angles are 2 atan of half of A's."""
    identity = torch.eye(len(skew), dtype=skew.dtype, device=skew.device)
    rotation: Tensor = torch.linalg.solve(identity - skew / 2, identity + skew / 2)
    return rotation
