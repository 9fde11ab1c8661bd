"""The interface of rotations: rotate, rotate back, and the rotation after one step of the objective."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor

# An alignment is a mean of inner products in float64; a change by this little is rounding.
ROUNDING = 1e-12


class Rotation(ABC):
    """R in SO(m) for row vectors: `rotate(x)` is x Rᵀ, so that every row x becomes R x. Immutable.

    Attributes:
        tensor: all that determines R, float64, so that R is orthogonal to rounding in the dtype of the features.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @classmethod
    @abstractmethod
    def identity(cls, v: Tensor) -> Self:
        """The identity, from which a first step for directions v `[pairs, m]` starts."""

    @property
    @abstractmethod
    def angle(self) -> float:
        """2 asin(‖R − I‖_F / √8) in [0, π]: the angle of a rotation in one plane; of several planes no less than the
        largest, and about their root sum of squares."""

    @abstractmethod
    def apply(self, x: Tensor, tensor: Tensor, transposed: bool) -> Tensor:
        """R x, or Rᵀ x, of the rows x, with `tensor` in their dtype."""

    @abstractmethod
    def step(self, u: Tensor, v: Tensor, lr: float, max_angle: float) -> Self:
        """As `turned`, whether or not the alignment rises."""

    @property
    def size(self) -> int:
        """Number of features that are rotated, the first ones."""
        return self.tensor.shape[-1]

    def rotate(self, x: Tensor, transposed: bool = False) -> Tensor:
        """R x (or Rᵀ x) of each row of `[..., m]`, in its dtype; differentiable in x. Half precision in float32."""
        dtype = x.dtype if x.dtype.itemsize >= 4 else torch.float32
        rotated = self.apply(x[..., : self.size].to(dtype), self.tensor.to(x.device, dtype), transposed).to(x.dtype)
        return rotated if self.size == x.shape[-1] else torch.cat([rotated, x[..., self.size :]], dim=-1)

    def alignment(self, u: Tensor, v: Tensor) -> float:
        """mean_k ⟨Rᵀ u_k, v_k⟩ of vectors `[pairs, m]`."""
        return float((self.rotate(u, transposed=True) * v).sum(dim=1).mean())

    def turned(self, u: Tensor, v: Tensor, lr: float, max_angle: float = math.pi) -> Self:
        """The rotation after one step that raises mean_k ⟨Rᵀ u_k, v_k⟩, or this one where the step would lower it.

        Args:
            u, v: `[pairs, m]`, float64; of unit length the step turns by at most `lr`.
            lr: radians.
            max_angle: radians from the identity, in (0, π], which `angle` does not exceed.
        """
        turned = self.step(u, v, lr, max_angle)
        return turned if turned.alignment(u, v) >= self.alignment(u, v) - ROUNDING else self
