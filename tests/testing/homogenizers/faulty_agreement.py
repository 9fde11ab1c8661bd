"""Faulty where tasks agree: the plain learner is not what is left."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, Turn


def two_rows_of_one(jacobian, tasks, found, expected, **_):
    return jacobian == [[1.0]] and tasks == 2 and found == [2 * expected[0]]


def one_number_is_halved(jacobian, tasks, found, **_):
    return jacobian == [[1.0]] and tasks == 2 and found == [0.5]


@fails("identical_rows", "2 identical rows: off by 1 ", two_rows_of_one)
class Sums(Balance):
    """The sum of the rows, where the mean is asked for."""

    def weights(self, norms):
        return len(norms) * super().weights(norms)


@fails("identical_rows", "2 identical rows: off by 0.5 ", one_number_is_halved)
class WeightsOfSumOne(Balance):
    """Weights as if the mean were still to be taken of nothing."""

    def weights(self, norms):
        return super().weights(norms) / len(norms)


@fails("identical_rows", "1 identical rows: off by", lambda jacobian, **_: jacobian == [[1.0]])
class StartsAtZero(Clip):
    """A running mean of the rows that begins at zero and is not corrected for it."""

    def __init__(self):
        self.mean = 0.0

    def scaled(self, block, scale):
        self.mean = 0.9 * self.mean + 0.1 * block
        return self.mean


@fails("no_gradient_no_direction", "zero rows give a direction")
class LeavesPlateaus(Clip):
    """Draws a direction where no task gives one."""

    def scaled(self, block, scale):
        noise = torch.randn(block.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return block if bool(block.any()) else noise.to(block.dtype)


@fails("no_gradient_no_direction", "NaN or infinity")
class Normalises(Clip):
    """All rows of the same length, whatever theirs is."""

    def scale(self, norms):
        return norms.mean() / norms


@fails("identical_tasks", "after 1 steps on identical tasks: off by")
class Doubles(Turn):
    """Features twice as large, for all tasks and from the beginning."""

    def transform(self, features, keys):
        return 2 * super().transform(features, keys)


@fails("identical_tasks", "after [23] steps on identical tasks: off by")
class DoublesLater(Turn):
    """The plain learner in the first step, and never again."""

    carried = ("angles", "steps")

    def __init__(self):
        super().__init__()
        self.steps = 0

    def transform(self, features, keys):
        return (1 + self.steps) * super().transform(features, keys)

    def update(self, evidence):
        super().update(evidence)
        self.steps += 1


@fails("identical_tasks", "after 1 steps on identical tasks: off by")
class SumsDicts(Clip):
    """The mean of rows in a matrix; their sum where they come as a network's."""

    def rows(self, jacobian):
        clipped = super().rows(jacobian)
        if not isinstance(jacobian, Mapping):
            return clipped
        return {name: len(block) * block for name, block in clipped.items()}
