"""The rotation that takes several v_k to their u_k as well as a rotation can."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradhomog_plugins._rotations.base import cayley
from gradhomog_plugins._rotations.closed import Closed

# How much staying counts beside turning: it chooses the smallest among the rotations that align equally well.
STAY = 1e-3


class Procrustes(Closed):
    """R maximises Σ_k ⟨Rᵀ u_k, v_k⟩ over rotations of the span of the running means; it is the identity elsewhere.

    In a basis B of the span: M = Σ_k (Bᵀu_k)(Bᵀv_k)ᵀ + ε I = W S Yᵀ, R = W diag(1, …, ±1) Yᵀ with det R = 1; all
    principal angles are then shrunk alike (θ ↦ 2 atan(s tan θ/2)) until none exceeds min(max_angle, lr · steps).

    Cost: O(m k² + k³) for a step, O(m k) for a vector. State: 2 k vectors.
    """

    def make(self) -> tuple[Tensor, ...]:
        u, v = self.mean_u, self.mean_v
        scale = float(u.norm() * v.norm())
        if scale == 0:
            return ()
        basis = torch.linalg.qr(torch.cat([v, u]).T)[0]
        cross = (u @ basis).T @ (v @ basis) / scale
        identity = torch.eye(basis.shape[1], dtype=torch.float64, device=basis.device)
        left, _, right = torch.linalg.svd(cross + STAY * identity)
        signs = torch.ones(basis.shape[1], dtype=torch.float64, device=basis.device)
        signs[-1] = torch.sign(torch.linalg.det(left) * torch.linalg.det(right))
        turned = (left * signs) @ right
        # The generator in Cayley's form; a little of the identity, since it has none where an angle is exactly π.
        generator = torch.linalg.solve((turned + (1 + 1e-12) * identity).T, (turned - identity).T).T
        generator = (generator - generator.T) / 2
        largest = float(torch.linalg.matrix_norm(generator, ord=2))
        allowed = math.tan(min(self.allowed, math.pi - 1e-6) / 2)
        if largest > allowed:
            generator = generator * (allowed / largest)
        return basis, cayley(2 * generator) - identity, basis
