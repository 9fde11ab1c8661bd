"""Benchmark of one update of feature rotations: homogenizers and `torch.nn.utils.parametrizations.orthogonal`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

import gradhomog
from gradhomog import TaskKey
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE
from gradhomog.experiments.profiling.timing import Workload
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.case import Case
from tests.benchmarks.command import main
from tests.benchmarks.rotation_inputs import Features, draw
from tests.benchmarks.rotation_peers import MAPS, OrthogonalLayers

SHAPES = ((4, 75, 64), (4, 75, 512), (4, 75, 1600))
"""Tasks, queries, features: 5-way tasks with 15 queries; conv4 with 64 filters at 28 px, ResNets, conv4 at 84 px."""

EXPRESSIONS = ("rotate", 'rotate(parameterization="geodesic")')
LARGEST_HOUSEHOLDER = 512
"""Maximum number of features for the Householder map, which takes several seconds per update for more features."""


class Update:
    """One step of a pipeline as in a learner: `transform` of features, backward pass of their gradients, `update`."""

    def __init__(self, text: str, tasks: int) -> None:
        self.pipe = gradhomog.pipeline(text)
        self.keys = [TaskKey(slot, f"domain {slot}") for slot in range(tasks)]
        # Small rows, so that the time of the rotation dominates.
        self.rows = torch.randn(tasks, 8, generator=torch.Generator().manual_seed(1))
        self.losses = torch.ones(tasks)

    def __call__(self, given: Features) -> Tensor:
        features = given.features.detach().requires_grad_()
        rotated = self.pipe.transform(features, self.keys)[-1]
        (gradients,) = torch.autograd.grad((rotated * given.gradients).sum(), features)
        self.pipe.combine(
            self.rows,
            losses=self.losses,
            domains=[key.domain for key in self.keys],
            features=features.detach(),
            feature_grads=given.gradients,
        )
        return gradients


def workloads(texts: Sequence[str], shape: Sequence[int]) -> dict[str, Workload]:
    """The workloads by label; without the Householder map for large features."""
    tasks, _, width = shape
    found: dict[str, Workload] = {text: Update(text, tasks) for text in texts}
    for name in MAPS:
        if name != "householder" or width <= LARGEST_HOUSEHOLDER:
            found[f"torch orthogonal, {name}"] = OrthogonalLayers(tasks, width, name)
    return found


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All workloads on features of `shape`, tasks x queries x features."""
    tasks, queries, width = shape
    reference = f"torch orthogonal, {MAPS[0]}"
    return Case(
        workloads(texts or EXPRESSIONS, shape),
        lambda number: draw(shape, number),
        (reference,),
        f"one update of {tasks} rotations of {width} features, {queries} queries each",
        (
            "An update: rotate the features, rotate the gradients of the losses back, take one step on the objective.",
            f"to {reference}: median over rounds of its time / median time of the other.",
            INTERVAL_NOTE,
            "All have an equal share of the time, so slow ones have fewer rounds. The first round is a warm-up.",
        ),
        min_rounds=2,  # the first update starts at the identity, so its rotations may be skipped
        with_memory=False,
    )


BENCHMARK = Benchmark("rotation", "homogenizer", ("tasks x queries x features",), SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))
