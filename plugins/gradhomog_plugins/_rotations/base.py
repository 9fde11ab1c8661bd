"""The interface of rotations: rotate, rotate back, and take a step on the objective."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from gradhomog import DataError, to_device

# Rounding error of an alignment, a mean of inner products in float64.
ROUNDING = 1e-12


class Rotation(ABC):
    """R in SO(m) for row vectors: `rotate(x)` is x Rᵀ, so that every row x becomes R x. Immutable.

    Attributes:
        tensor: the parameters of R, in float64, so that R is orthogonal up to rounding in the dtype of the features.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @classmethod
    @abstractmethod
    def identity(cls, v: Tensor) -> Self:
        """Return the identity, as the start of a first step for directions v `[pairs, m]`."""

    @property
    @abstractmethod
    def angle(self) -> float:
        """2 asin(‖R − I‖_F / √8) in [0, π]: the angle of a rotation in one plane; for several planes, at least the
        largest angle, and about their root sum of squares."""

    @abstractmethod
    def apply(self, x: Tensor, tensor: Tensor, transposed: bool) -> Tensor:
        """Return R x, or Rᵀ x, for the rows x, with `tensor` in their dtype."""

    @abstractmethod
    def propose(self, u: Tensor, v: Tensor, lr: float, max_angle: float) -> Self:
        """As `step`, whether or not the alignment rises."""

    @property
    def size(self) -> int:
        """Number of leading features that are rotated."""
        return self.tensor.shape[-1]

    def rotate(self, x: Tensor, transposed: bool = False) -> Tensor:
        """Return R x (or Rᵀ x) for each row of `[..., m]`, differentiable in x; half precision in float32."""
        dtype = x.dtype if x.dtype.itemsize >= 4 else torch.float32
        rotated = self.apply(x[..., : self.size].to(dtype), to_device(self.tensor, x.device, dtype), transposed).to(
            x.dtype
        )
        return rotated if self.size == x.shape[-1] else torch.cat([rotated, x[..., self.size :]], dim=-1)

    def alignment(self, u: Tensor, v: Tensor) -> float:
        """Return mean_k ⟨Rᵀ u_k, v_k⟩ for vectors `[pairs, m]`."""
        return float((self.rotate(u, transposed=True) * v).sum(dim=1).mean())

    def step(self, u: Tensor, v: Tensor, lr: float, max_angle: float = math.pi) -> Self:
        """Return the rotation after one step that raises mean_k ⟨Rᵀ u_k, v_k⟩, or this one if the step would lower it.

        Args:
            u, v: `[pairs, m]`, float64; for unit length the step turns by at most `lr`.
            lr: rate, in radians.
            max_angle: upper limit of `angle` in radians, in (0, π].
        """
        new = self.propose(u, v, lr, max_angle)
        return new if new.alignment(u, v) >= self.alignment(u, v) - ROUNDING else self


def check_features(owner: str, rotation: Rotation | None, features: int) -> None:
    """Raise `DataError` if the number of features is not that of the rotation."""
    if rotation is not None and rotation.size != features:
        raise DataError(
            f"{owner}: the number of features must not change, {rotation.size}; got {features}. "
            "Construct a new pipeline for another encoder."
        )


def rotate_tasks(rotations: Sequence[Rotation | None], vectors: Tensor, transposed: bool = False) -> Tensor:
    """Return R_k x (or R_kᵀ x) for each task's vectors `[tasks, ..., m]`; the same tensor if all rotations are None."""
    if all(rotation is None for rotation in rotations):
        return vectors
    return torch.stack(
        [
            task if rotation is None else rotation.rotate(task, transposed)
            for rotation, task in zip(rotations, vectors, strict=True)
        ]
    )


def angles(rotations: Sequence[Rotation | None]) -> list[float]:
    """Return the angle of each rotation, in radians."""
    return [0.0 if rotation is None else rotation.angle for rotation in rotations]
