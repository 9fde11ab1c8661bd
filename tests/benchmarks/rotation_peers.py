"""Rotations with PyTorch's orthogonal parametrization, as used by RotoGrad and RotoGBML."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal

from tests.benchmarks.rotation_inputs import Features

MAPS = ("matrix_exp", "cayley", "householder")


class OrthogonalLayers:
    """One `orthogonal(nn.Linear(features, features))` per task, and Adam on −Σ ⟨R_iᵀ u_i, v⟩.

    u_i is the direction of the mean feature gradient of task i, and v the direction of their mean. R_i is computed once
    per update (`parametrize.cached`), unlike in the published code. Matrices are not batched, because batched
    decompositions with several threads are faulty in current PyTorch (pytorch issue 142815).
    """

    def __init__(self, tasks: int, width: int, orthogonal_map: str) -> None:
        layers = []
        for _ in range(tasks):
            layer = nn.Linear(width, width, bias=False)
            nn.init.eye_(layer.weight)
            layers.append(orthogonal(layer, orthogonal_map=orthogonal_map))
        self.layers = nn.ModuleList(layers)
        self.optimizer = torch.optim.Adam(self.layers.parameters(), lr=5e-4)

    def matrices(self) -> list[Tensor]:
        """R_i, `[features, features]` each."""
        return [layer.weight for layer in self.layers]

    def objective(self, gradients: Tensor) -> Tensor:
        """−Σ ⟨R_iᵀ u_i, v⟩."""
        directions = functional.normalize(gradients.mean(dim=1), dim=-1)
        common = functional.normalize(directions.mean(dim=0), dim=-1)
        pairs = zip(directions, self.matrices(), strict=True)
        return -torch.stack([direction @ (matrix @ common) for direction, matrix in pairs]).sum()

    def __call__(self, given: Features) -> Tensor:
        """Update the rotations and return the gradient of the losses w.r.t. the features before the rotation."""
        features = given.features.detach().requires_grad_()
        with parametrize.cached():
            rotated = torch.stack([layer(task) for layer, task in zip(self.layers, features, strict=True)])
            (gradients,) = torch.autograd.grad((rotated * given.gradients).sum(), features)
            self.optimizer.zero_grad()
            self.objective(given.gradients).backward()
        self.optimizer.step()
        return gradients
