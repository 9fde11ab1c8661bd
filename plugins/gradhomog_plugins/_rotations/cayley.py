"""The Cayley transform of a skew-symmetric matrix of low rank, through Woodbury's identity."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog_plugins._rotations.base import Factored, Settings
from gradhomog_plugins._rotations.learnt import Learnt, ascend


class LowRankCayley(Learnt, Factored):
    """R = (I − A/2)⁻¹ (I + A/2), A = U Vᵀ − V Uᵀ: U is learnt from zero, V `[m, rank]` is fixed and orthonormal.

    With W = [U, −V], Z = [V, U]:  R = I + W (I − ZᵀW/2)⁻¹ Zᵀ.

    V's first columns are the first v that it is turned to, the others random: with all of V at random a fraction
    √(rank/m) of a step would turn v.

    Cost: O(m rank) for a step and for a vector. State: U and V.
    """

    saved = ("u", "v")

    def __init__(self, features: int, settings: Settings, seed: int) -> None:
        super().__init__(features, settings, seed)
        self.u = torch.zeros(features, 0, dtype=torch.float64)
        self.v = torch.zeros(features, 0, dtype=torch.float64)

    def derive(self) -> tuple[Tensor, ...]:
        return factors(self.u, self.v) if self.u.any() else ()

    def step(self, u: Tensor, v: Tensor) -> None:
        if self.v.shape[1] == 0:
            self._span(v)
        self.u, self.v = self.u.to(u.device), self.v.to(u.device)

        def objective(parameter: Tensor) -> Tensor:
            return (self.apply(u, factors(parameter, self.v), transposed=True) * v).sum(dim=1).mean()

        def angle(change: Tensor) -> Tensor:  # ‖dA‖_F / √2, as V is orthonormal
            inside = self.v.T @ change
            return (change.square().sum() - (inside * inside.T).sum()).sqrt()

        self.u = ascend(self.u, objective, angle, self.settings.lr)

    def _span(self, v: Tensor) -> None:
        rank = min(self.settings.rank, self.features)
        generator = torch.Generator().manual_seed(self.seed)
        random = torch.randn(self.features, rank, generator=generator, dtype=torch.float64).to(v.device)
        self.v = torch.linalg.qr(torch.cat([v.T, random], dim=1)[:, :rank])[0]
        self.u = torch.zeros_like(self.v)


def factors(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L, C, Z with I + L C Zᵀ the Cayley transform of U Vᵀ − V Uᵀ, of columns `[m, k]`."""
    left, right = torch.cat([u, -v], dim=1), torch.cat([v, u], dim=1)
    identity = torch.eye(left.shape[1], dtype=left.dtype, device=left.device)
    core = torch.linalg.solve(identity - right.T @ left / 2, identity)
    return left, core, right
