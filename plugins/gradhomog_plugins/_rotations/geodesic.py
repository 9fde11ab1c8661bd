"""A dense rotation matrix, turned along the geodesic: a rotation in one plane after another."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradhomog_plugins._rotations.base import Rotation, Settings
from gradhomog_plugins._rotations.learnt import HALVINGS
from gradhomog_plugins._rotations.plane import PARALLEL

# Rounding adds up over products of rotations: one Newton-Schulz step in this many turns takes it away.
CORRECT_EVERY = 100
# Of orthogonality, and of the angle relative to its limit: well above rounding, so that the iterations end.
NEAR = 1e-11


class Geodesic(Rotation):
    """R ← R E, with E the rotation of the plane of v and a = Rᵀ u that turns a towards v by min(lr, ∠(a, v)).

    It is the Riemannian gradient step of ⟨Rᵀ u, v⟩, whose gradient has rank two; several pairs take turns, with a
    share of `lr` each.

    Cost: O(m²) for a step and for a vector. State: R.
    """

    saved = ("matrix", "steps")

    def __init__(self, features: int, settings: Settings, seed: int) -> None:
        super().__init__(features, settings, seed)
        self.matrix = torch.zeros(0, dtype=torch.float64)  # made when it is first turned
        self.steps = 0

    def derive(self) -> tuple[Tensor, ...]:
        return (self.matrix,) if self.steps else ()

    def apply(self, x: Tensor, tensors: tuple[Tensor, ...], transposed: bool) -> Tensor:
        return x @ tensors[0] if transposed else x @ tensors[0].T

    @property
    def defect(self) -> float:
        return self.features - float(self.matrix.trace()) if self.steps else 0.0

    def step(self, u: Tensor, v: Tensor) -> None:
        if not self.steps:
            self.matrix = torch.eye(self.features, dtype=torch.float64, device=u.device)
        share = self.settings.lr / len(u)
        matrix = self.matrix.to(u.device, copy=True)
        for one, other in zip(u, v, strict=True):
            _turn_plane(matrix, one, other, share)
        self.matrix = matrix
        self.steps += 1
        if self.steps % CORRECT_EVERY == 0:
            self.matrix = _corrected(self.matrix)

    def shrink(self) -> None:
        """Towards the identity on the chord, and back to the rotations: it is a step's overshoot, so little. O(m³)."""
        identity = torch.eye(self.features, dtype=torch.float64, device=self.matrix.device)
        limit = 4 * math.sin(self.settings.max_angle / 2) ** 2  # of the defect
        for _ in range(HALVINGS):
            share = 1 - limit / self.defect
            if share <= NEAR:
                return
            self.matrix = (1 - share) * self.matrix + share * identity
            while bool((self.matrix.T @ self.matrix - identity).abs().max() > NEAR):
                self.matrix = _corrected(self.matrix)


def _corrected(matrix: Tensor) -> Tensor:
    """One Newton-Schulz step to the nearest orthogonal matrix."""
    return 1.5 * matrix - 0.5 * matrix @ (matrix.T @ matrix)


def _turn_plane(matrix: Tensor, u: Tensor, v: Tensor, lr: float) -> None:
    """In place: R ← R E."""
    a = u @ matrix
    across = a - (a @ v) * v
    across = across - (across @ v) * v
    sine = across.norm()
    if bool(sine < PARALLEL):
        return
    q = across / sine
    angle = torch.atan2(sine, a @ v).clamp(max=lr)
    c, s = torch.cos(angle) - 1, torch.sin(angle)
    basis = torch.stack([v, q], dim=1)
    core = torch.stack([torch.stack([c, -s]), torch.stack([s, c])])
    matrix.addmm_((matrix @ basis) @ core, basis.T)
