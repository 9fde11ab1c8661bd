"""A dense rotation matrix, turned by gradient steps on the rotations."""

from __future__ import annotations

from torch import Tensor

from gradhomog_plugins._rotations.base import cayley
from gradhomog_plugins._rotations.cayley import factors
from gradhomog_plugins._rotations.learnt import HALVINGS
from gradhomog_plugins._rotations.matrix import Matrix


class Riemannian(Matrix):
    """R ← R cay(A), A = lr decay^t mean_k (a_k v_kᵀ − v_k a_kᵀ), a_k = Rᵀ u_k: up the gradient of mean_k ⟨Rᵀ u_k, v_k⟩.

    A is the derivative by the entries below the diagonal of a skew-symmetric matrix, at zero: every step starts from
    R, so that no derivative of the Cayley transform is needed. A step is as long as the gradient, so that it turns by
    lr ‖u‖ ‖v‖ at most and less and less as vectors align; one that would lower the objective is halved.

    Cost: with p pairs O(m² p) for a step if 2p < m, else O(m³).
    """

    @property
    def size(self) -> int:
        return self.settings.size or self.features

    def step(self, u: Tensor, v: Tensor) -> None:
        matrix = self.on(u.device)
        arriving = u @ matrix
        aligned = (arriving * v).sum()
        pull = arriving * (self.settings.lr * self.settings.decay**self.steps / len(u))
        for _ in range(HALVINGS):
            turned = _times_cayley(matrix, pull, v)
            if bool(((u @ turned) * v).sum() >= aligned):
                self.become(turned)
                return
            pull = pull / 2


def _times_cayley(matrix: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """R cay(Σ_k u_k v_kᵀ − v_k u_kᵀ), through the smaller of two systems of equations."""
    if 2 * len(u) < len(matrix):
        left, core, right = factors(u.T, v.T)
        return matrix + (matrix @ left) @ core @ right.T
    half = u.T @ v
    return matrix @ cayley(half - half.T)
