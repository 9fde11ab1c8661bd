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
    """R maximises Σ_k ⟨Rᵀ u_k, v_k⟩ over rotations of the span of all u and v; it is the identity elsewhere.

    In a basis B of the span: M = Σ_k (Bᵀu_k)(Bᵀv_k)ᵀ / k + ε I = W S Yᵀ, R = W diag(1, …, ±1) Yᵀ with det R = 1; all
    principal angles are then shrunk alike (θ ↦ 2 atan(s tan θ/2)) until `angle` is `max_angle` at most.

    Cost: O(m k² + k³) for a step, O(m k) for a vector. State: 2 k vectors.
    """

    def make(self, u: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        basis = torch.linalg.qr(torch.cat([v, u]).T)[0]
        cross = (u @ basis).T @ (v @ basis) / len(u)
        identity = torch.eye(basis.shape[1], dtype=torch.float64, device=basis.device)
        left, _, right = torch.linalg.svd(cross + STAY * identity)
        signs = torch.ones(basis.shape[1], dtype=torch.float64, device=basis.device)
        signs[-1] = torch.sign(torch.linalg.det(left) * torch.linalg.det(right))
        turned = (left * signs) @ right
        # The generator in Cayley's form; a little of the identity, since it has none where an angle is exactly π.
        generator = torch.linalg.solve((turned + (1 + 1e-12) * identity).T, (turned - identity).T).T
        generator = (generator - generator.T) / 2
        scale = _scale(torch.linalg.svdvals(generator).tolist(), self.settings.max_angle)
        return basis, cayley(2 * scale * generator) - identity, basis


def _scale(tangents: list[float], max_angle: float) -> float:
    """The largest s ≤ 1 for which angles 2 atan(s t) have Σ 4 sin²(θ/2) ≤ 8 sin²(max_angle/2); each t occurs twice."""

    def chord(s: float) -> float:
        return sum(4 * (s * t) ** 2 / (1 + (s * t) ** 2) for t in tangents)

    limit = 8 * math.sin(max_angle / 2) ** 2
    low, high = 0.0, 1.0
    if chord(high) <= limit:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chord(middle) <= limit else (low, middle)
    return low
