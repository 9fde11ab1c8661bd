"""Benchmark of one update of feature rotations: homogenizers and `torch.nn.utils.parametrizations.orthogonal`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal

import gradhomog
from gradhomog import TaskKey
from gradhomog.experiments.profiling.harness import Comparison, Workload
from tests.benchmarks.benchmark import Benchmark

SHAPES = ((4, 75, 64), (4, 75, 512), (4, 75, 1600))
"""Tasks, queries, features: 5-way tasks with 15 queries; conv4 with 64 filters at 28 px, ResNets, conv4 at 84 px."""

EXPRESSIONS = ("rotate", 'rotate(parameterization="geodesic")')
MAPS = ("matrix_exp", "cayley", "householder")
LARGEST_HOUSEHOLDER = 512
"""Maximum number of features for the Householder map, which takes several seconds per update for more features."""


@dataclass(frozen=True)
class Batch:
    """Features `[tasks, queries, features]`, and the gradients of the losses w.r.t. the rotated features."""

    features: Tensor
    gradients: Tensor


@dataclass(frozen=True)
class Features:
    """Random features, and gradients with a shared direction plus one direction per task."""

    tasks: int
    queries: int
    width: int

    def batch(self, number: int) -> Batch:
        random = torch.Generator().manual_seed(number)
        every = (self.tasks, self.queries, self.width)
        shared = functional.normalize(torch.randn(1, 1, self.width, generator=random), dim=-1)
        own = functional.normalize(torch.randn(self.tasks, 1, self.width, generator=random), dim=-1)
        noise = torch.randn(every, generator=random) / self.width**0.5
        return Batch(torch.randn(every, generator=random), shared + own + noise)


class Update:
    """One step of a pipeline as in a learner: `transform` of features, backward pass of their gradients, `update`."""

    def __init__(self, text: str, tasks: int) -> None:
        self.pipe = gradhomog.pipeline(text)
        self.keys = [TaskKey(slot, f"domain {slot}") for slot in range(tasks)]
        # Small rows, so that the time of the rotation dominates.
        self.rows = torch.randn(tasks, 8, generator=torch.Generator().manual_seed(1))
        self.losses = torch.ones(tasks)

    def __call__(self, batch: Batch) -> Tensor:
        features = batch.features.detach().requires_grad_()
        rotated = self.pipe.transform(features, self.keys)[-1]
        (gradients,) = torch.autograd.grad((rotated * batch.gradients).sum(), features)
        self.pipe.combine(
            self.rows, losses=self.losses, domains=[key.domain for key in self.keys],
            features=features.detach(), feature_grads=batch.gradients,
        )  # fmt: skip
        return gradients


class OrthogonalLayers:
    """One `orthogonal(nn.Linear(features, features))` per task as in RotoGrad, and Adam on −Σ ⟨R_iᵀ u_i, v⟩.

    u_i is the direction of the mean feature gradient of task i, and v the direction of their mean. R_i is computed once
    per update (`parametrize.cached`), unlike in the published code. Matrices are not batched, because batched
    decompositions with several threads are faulty in current PyTorch (pytorch issue 142815).
    """

    def __init__(self, tasks: int, width: int, orthogonal_map: str) -> None:
        layers = [nn.Linear(width, width, bias=False) for _ in range(tasks)]
        for layer in layers:
            nn.init.eye_(layer.weight)
        self.layers = nn.ModuleList(orthogonal(layer, orthogonal_map=orthogonal_map) for layer in layers)
        self.optimizer = torch.optim.Adam(self.layers.parameters(), lr=5e-4)

    def objective(self, gradients: Tensor) -> Tensor:
        """−Σ ⟨R_iᵀ u_i, v⟩."""
        directions = functional.normalize(gradients.mean(dim=1), dim=-1)
        common = functional.normalize(directions.mean(dim=0), dim=-1)
        pairs = zip(directions, self.layers, strict=True)
        return -torch.stack([direction @ (layer.weight @ common) for direction, layer in pairs]).sum()

    def __call__(self, batch: Batch) -> Tensor:
        """Update the rotations and return the gradient of the losses w.r.t. the features before the rotation."""
        features = batch.features.detach().requires_grad_()
        with parametrize.cached():
            rotated = torch.stack([layer(task) for layer, task in zip(self.layers, features, strict=True)])
            (gradients,) = torch.autograd.grad((rotated * batch.gradients).sum(), features)
            self.optimizer.zero_grad()
            self.objective(batch.gradients).backward()
        self.optimizer.step()
        return gradients


def compare(texts: Sequence[str], source: Features) -> Comparison:
    tasks, width = source.tasks, source.width
    updates: dict[str, Workload] = {text: Update(text, tasks) for text in texts or EXPRESSIONS}
    for name in MAPS:
        if name != "householder" or width <= LARGEST_HOUSEHOLDER:
            updates[f"torch orthogonal, {name}"] = OrthogonalLayers(tasks, width, name)
    return Comparison(
        f"one update of {tasks} rotations of {width} features, {source.queries} queries each",
        updates, source.batch, (f"torch orthogonal, {MAPS[0]}",),
        ("An update: rotate the features, rotate the gradients of the losses back, take one step on the objective.",),
        shared_budget=False, with_memory=False,
    )  # fmt: skip


BENCHMARK = Benchmark("rotation", {"tasks x queries x features": Features}, SHAPES, compare)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main(__doc__))
