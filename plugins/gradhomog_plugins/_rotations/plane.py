"""The rotation in one plane that takes v to u."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradhomog_plugins._rotations.closed import Closed

# Directions closer than this to equal or opposite span no plane, in float64.
PARALLEL = 1e-9


class Plane(Closed):
    """R turns the plane of v and u from v towards u: the smallest rotation with Rᵀ u = v.

    R = I + [p q] [[cos α − 1, −sin α], [sin α, cos α − 1]] [p q]ᵀ, p = v, q ∝ u − ⟨u, v⟩ v, α = min(∠(u, v), max_angle)
    Where u = −v the plane is undefined: R is the identity.

    Of several pairs, the means. Cost: O(m) for a step and for a vector. State: two vectors.
    """

    def step(self, u: Tensor, v: Tensor) -> None:
        one, other = u.mean(0, keepdim=True), v.mean(0, keepdim=True)
        if bool(one.any()) and bool(other.any()):
            super().step(one / one.norm(), other / other.norm())

    def make(self, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        u, p = u[0], v[0]
        across = u - (u @ p) * p
        across = across - (across @ p) * p  # once more: orthogonal to rounding where u and v are nearly parallel
        sine, cosine = float(across.norm()), float(u @ p)
        if sine < PARALLEL:
            return ()
        angle = min(math.atan2(sine, cosine), self.settings.max_angle)
        basis = torch.stack([p, across / sine], dim=1)
        c, s = math.cos(angle) - 1, math.sin(angle)
        core = torch.tensor([[c, -s], [s, c]], dtype=torch.float64, device=basis.device)
        return basis, core, basis
