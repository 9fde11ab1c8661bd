"""Dense skew-symmetric matrices, for reference: O(m³) a step. And RotoGrad's subspace, which is one of few features."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from gradhomog_plugins._rotations.base import Settings, cayley
from gradhomog_plugins._rotations.learnt import Learnt, ascend


class Dense(Learnt):
    """R = f(A) of a learnt skew-symmetric A `[m, m]`, A = 0 at first."""

    saved = ("skew",)

    def __init__(self, features: int, settings: Settings, seed: int) -> None:
        super().__init__(features, settings, seed)
        self.skew = torch.zeros(0, dtype=torch.float64)

    @staticmethod
    @abstractmethod
    def matrix(skew: Tensor) -> Tensor:
        """f."""

    def derive(self) -> tuple[Tensor, ...]:
        return (self.matrix(self.skew),) if len(self.skew) else ()

    def apply(self, x: Tensor, tensors: tuple[Tensor, ...], transposed: bool) -> Tensor:
        return x @ tensors[0] if transposed else x @ tensors[0].T

    @property
    def defect(self) -> float:
        return self.size - float(self.tensors[0].trace()) if self.tensors else 0.0

    def step(self, u: Tensor, v: Tensor) -> None:
        if not len(self.skew):
            self.skew = torch.zeros(u.shape[1], u.shape[1], dtype=torch.float64, device=u.device)
        self.skew = self.skew.to(u.device)

        def objective(parameter: Tensor) -> Tensor:
            return ((u @ self.matrix(parameter - parameter.T)) * v).sum(dim=1).mean()

        def angle(change: Tensor) -> Tensor:  # of a change in one plane, exactly; else more than the largest
            size: Tensor = torch.linalg.matrix_norm(change - change.T)
            return size / 2**0.5

        half = ascend(self.skew / 2, objective, angle, self.settings.lr)
        self.skew = half - half.T


class DenseCayley(Dense):
    """R = (I − A/2)⁻¹ (I + A/2)."""

    @staticmethod
    def matrix(skew: Tensor) -> Tensor:
        return cayley(skew)


class DenseExponential(Dense):
    """R = e^A."""

    @staticmethod
    def matrix(skew: Tensor) -> Tensor:
        result: Tensor = torch.linalg.matrix_exp(skew)
        return result


class Subspace(DenseCayley):
    """A rotation of the first `rank` features only, as the published RotoGrad does with large networks."""

    @property
    def size(self) -> int:
        return min(self.settings.rank, self.features)
