"""Rotations that are kept as the matrix itself, and stay orthogonal however often they are multiplied."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradhomog_plugins._rotations.base import Rotation, Settings
from gradhomog_plugins._rotations.learnt import HALVINGS

# Rounding adds up over products of rotations: one Newton-Schulz step in this many turns takes it away.
CORRECT_EVERY = 100
# Of orthogonality, and of the angle relative to its limit: well above rounding, so that the iterations end.
NEAR = 1e-11


class Matrix(Rotation):
    """R `[size, size]`, which is the identity or random when made. Cost: O(size²) for a vector. State: R."""

    saved = ("matrix", "steps")

    def __init__(self, features: int, settings: Settings, seed: int) -> None:
        super().__init__(features, settings, seed)
        # An identity is made when it is first turned.
        self.matrix = haar(self.size, seed) if settings.start == "haar" else torch.zeros(0, dtype=torch.float64)
        self.steps = 0

    def derive(self) -> tuple[Tensor, ...]:
        return (self.matrix,) if len(self.matrix) else ()

    def apply(self, x: Tensor, tensors: tuple[Tensor, ...], transposed: bool) -> Tensor:
        return x @ tensors[0] if transposed else x @ tensors[0].T

    @property
    def defect(self) -> float:
        return self.size - float(self.matrix.trace()) if len(self.matrix) else 0.0

    def on(self, device: torch.device) -> Tensor:
        """R on a device, not to be written to."""
        if not len(self.matrix):
            self.matrix = torch.eye(self.size, dtype=torch.float64, device=device)
        return self.matrix.to(device)

    def become(self, matrix: Tensor) -> None:
        """Take over the product of R and one more rotation."""
        self.steps += 1
        self.matrix = _corrected(matrix) if self.steps % CORRECT_EVERY == 0 else matrix

    def shrink(self) -> None:
        """Towards the identity on the chord, and back to the rotations: it is a step's overshoot, so little. O(m³)."""
        identity = torch.eye(self.size, dtype=torch.float64, device=self.matrix.device)
        limit = 4 * math.sin(self.settings.max_angle / 2) ** 2  # of the defect
        for _ in range(HALVINGS):
            share = 1 - limit / self.defect
            if share <= NEAR:
                return
            self.matrix = (1 - share) * self.matrix + share * identity
            while bool((self.matrix.T @ self.matrix - identity).abs().max() > NEAR):
                self.matrix = _corrected(self.matrix)


def haar(size: int, seed: int) -> Tensor:
    """A rotation drawn uniformly from SO(size)."""
    generator = torch.Generator().manual_seed(seed)
    orthogonal, triangular = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    # The signs that QR leaves open depend on the algorithm: with a positive diagonal the distribution is uniform.
    orthogonal = orthogonal * torch.sign(triangular.diagonal())
    return torch.cat([orthogonal[:, :1] * torch.sign(torch.linalg.det(orthogonal)), orthogonal[:, 1:]], dim=1)


def _corrected(matrix: Tensor) -> Tensor:
    """One Newton-Schulz step to the nearest orthogonal matrix."""
    return 1.5 * matrix - 0.5 * matrix @ (matrix.T @ matrix)
