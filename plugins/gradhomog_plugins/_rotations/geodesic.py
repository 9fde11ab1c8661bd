"""A dense rotation matrix, turned along the geodesic: a rotation in one plane after another."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog_plugins._rotations.matrix import Matrix
from gradhomog_plugins._rotations.plane import PARALLEL


class Geodesic(Matrix):
    """R ← R E, with E the rotation of the plane of v and a = Rᵀ u that turns a towards v by min(lr, ∠(a, v)).

    It is the Riemannian gradient step of ⟨Rᵀ u, v⟩, whose gradient has rank two; several pairs take turns, with a
    share of `lr` each.

    Cost: O(m²) for a step.
    """

    def step(self, u: Tensor, v: Tensor) -> None:
        share = self.settings.lr / len(u)
        matrix = self.on(u.device).clone()
        for one, other in zip(u, v, strict=True):
            _turn_plane(matrix, one, other, share)
        self.become(matrix)


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
