"""Time one whole update of rotations, beside `torch.nn.utils.parametrizations.orthogonal`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

import gradhomog
from gradhomog import TaskKey
from gradhomog.experiments.profiling import table
from gradhomog.experiments.profiling.inputs import Features
from gradhomog.experiments.profiling.kernel import Kernel, Trial
from gradhomog.experiments.profiling.rotation_peers import MAPS, OrthogonalLayers
from gradhomog.experiments.profiling.timing import Work

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
        # So small that nothing but the rotation takes time.
        self.rows = torch.randn(tasks, 8, generator=torch.Generator().manual_seed(1))
        self.losses = torch.ones(tasks)

    def __call__(self, given: Features) -> Tensor:
        features = given.features.detach().requires_grad_()
        rotated = self.pipe.transform(features, self.keys)[-1]
        (gradients,) = torch.autograd.grad((rotated * given.cotangents).sum(), features)
        self.pipe.combine(
            self.rows,
            losses=self.losses,
            domains=[key.domain for key in self.keys],
            features=features.detach(),
            feature_grads=given.cotangents,
        )
        return gradients


def draw(shape: Sequence[int], number: int) -> Features:
    """Input of a round: random features, and gradients with a direction that all tasks share and one per task."""
    tasks, queries, width = shape
    random = torch.Generator().manual_seed(number)
    shared = functional.normalize(torch.randn(1, 1, width, generator=random), dim=-1)
    own = functional.normalize(torch.randn(tasks, 1, width, generator=random), dim=-1)
    noise = torch.randn(tasks, queries, width, generator=random) / width**0.5
    return Features(torch.randn(tasks, queries, width, generator=random), shared + own + noise)


def _works(texts: Sequence[str], shape: Sequence[int]) -> dict[str, Work]:
    tasks, _, width = shape
    found: dict[str, Work] = {text: Update(text, tasks) for text in texts}
    for name in MAPS:
        if name != "householder" or width <= LARGEST_HOUSEHOLDER:
            found[f"torch orthogonal, {name}"] = OrthogonalLayers(tasks, width, name)
    return found


def _trial(texts: Sequence[str], shape: Sequence[int]) -> Trial:
    tasks, queries, width = shape
    reference = f"torch orthogonal, {MAPS[0]}"
    return Trial(
        _works(texts or EXPRESSIONS, shape),
        lambda number: draw(shape, number),
        (reference,),
        f"one update of {tasks} rotations of {width} features, {queries} queries each",
        (
            "An update: rotate the features, rotate the gradients of the losses back, take one step on the objective.",
            f"to {reference}: median over rounds of its time / median of the other's.",
            table.INTERVAL_NOTE,
            f"{table.SHARE_NOTE} The first round does not count.",
        ),
        at_least=2,  # the first update starts at the identity and may have nothing to rotate
        with_memory=False,
    )


rotation_costs = Kernel(("tasks x queries x features",), SHAPES, _trial)
"""Seconds per update, and ratios to the matrix exponential."""
