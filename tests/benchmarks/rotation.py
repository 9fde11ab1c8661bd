"""One update of rotations of features, beside `torch.nn.utils.parametrizations.orthogonal`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

import gradhomog
from gradhomog import TaskKey
from gradhomog.experiments.profiling.table_text import INTERVAL_NOTE
from gradhomog.experiments.profiling.timing import Work
from tests.benchmarks.benchmark import Benchmark
from tests.benchmarks.case import Case
from tests.benchmarks.command import main
from tests.benchmarks.rotation_inputs import Features, draw
from tests.benchmarks.rotation_peers import MAPS, OrthogonalLayers

SHAPES = ((4, 75, 64), (4, 75, 512), (4, 75, 1600))
"""Tasks, queries, features: of 5-way episodes with 15 queries; conv4 with 64 filters at 28 and 84 px, and ResNets."""

EXPRESSIONS = ("rotate", 'rotate(parameterization="geodesic")')
LARGEST_HOUSEHOLDER = 512
"""Beyond it the Householder map takes several seconds per update."""


class Update:
    """One step of a pipeline as a learner makes it: features through `transform`, their gradients back, `update`."""

    def __init__(self, text: str, tasks: int) -> None:
        self.pipe = gradhomog.pipeline(text)
        self.keys = [TaskKey(slot, f"domain {slot}") for slot in range(tasks)]
        # Small rows, so that the rotation dominates.
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


def works(texts: Sequence[str], shape: Sequence[int]) -> dict[str, Work]:
    """The works by label; without the Householder map for large features."""
    tasks, _, width = shape
    found: dict[str, Work] = {text: Update(text, tasks) for text in texts}
    for name in MAPS:
        if name != "householder" or width <= LARGEST_HOUSEHOLDER:
            found[f"torch orthogonal, {name}"] = OrthogonalLayers(tasks, width, name)
    return found


def case(texts: Sequence[str], shape: Sequence[int]) -> Case:
    """All works on features of `shape`, tasks x queries x features."""
    tasks, queries, width = shape
    reference = f"torch orthogonal, {MAPS[0]}"
    return Case(
        works(texts or EXPRESSIONS, shape),
        lambda number: draw(shape, number),
        (reference,),
        f"one update of {tasks} rotations of {width} features, {queries} queries each",
        (
            "An update: rotate the features, rotate the gradients of the losses back, take one step on the objective.",
            f"to {reference}: median over rounds of its time / median of the other's.",
            INTERVAL_NOTE,
            "Each has an equal share of the time, so slow ones have fewer rounds. The first round does not count.",
        ),
        at_least=2,  # the first update starts at the identity and may have nothing to rotate
        with_memory=False,
    )


BENCHMARK = Benchmark("rotation", "homogenizer", ("tasks x queries x features",), SHAPES, case)


if __name__ == "__main__":
    sys.exit(main(BENCHMARK, __doc__))
