"""The Klein-Gordon equation on fixed points, as in the code that compares weights by statistics of gradients."""

from typing import Annotated, Unpack

import numpy as np
import torch
from annotated_types import Ge, Interval

from gradhomog import ProblemRun
from gradhomog_data._seeding import generator
from gradhomog_data.problems.pinn import PDE, KleinGordon, PinnOptions, Points, make_grid

GAIN = 5 / 3
"""Of the initial weights of all layers, the last one included, as `torch.nn.init.calculate_gain("tanh")`."""


class KleinGordonGrid(KleinGordon):
    """`KleinGordon` on the same points in every step: some of the test grid, and equally spaced ones on three sides.

    Inputs are standardized by mean and standard deviation of these points and of those of the side t = 1, and the
    initial weights of all layers have the gain 5/3.

    Source: the notebook KleinGordonEqn of cvjena/GradStats4PINNs, the code of "Gradient statistics based
    multi-objective optimization in physics-informed neural networks".

    Deviations from the notebook: 1. The error is relative to the solution, there to the output of the network. 2. The
    points and the network depend on the seed of the run; there each layer is drawn from the same seed.

    Args:
        interior: points of the test grid that are drawn without replacement.
        boundary: points on each of the sides x = 0, x = 1 and t = 0.
        options: as in `Pinn`.
    """

    def __init__(
        self,
        run: ProblemRun,
        *,
        interior: Annotated[int, Interval(ge=1, le=10_000)] = 1000,
        boundary: Annotated[int, Ge(1)] = 100,
        **options: Unpack[PinnOptions],
    ) -> None:
        super().__init__(run, interior=interior, initial=boundary, boundary=boundary, **options)
        fixed = self.points(0)
        points = torch.cat([*fixed.values(), fixed["initial"] + fixed["initial"].new_tensor([1.0, 0.0])])  # and t = 1
        self.network.centre.copy_(points.mean(0))
        self.network.scale.copy_(points.std(0, correction=0))
        for weight in self.network.parameters():
            weight.data.mul_(GAIN)  # biases are 0

    def draw(self, random: np.random.Generator) -> dict[str, Points]:
        order = generator(self.seed, 1).permutation(100**2)[: self.counts["interior"]]
        line = np.linspace(0, 1, self.counts["boundary"])
        sides = [np.stack([line, np.full_like(line, side)], axis=1) for side in (0, 1)]
        return {
            PDE: make_grid(self.lower, self.upper, self.grid)[order],
            "initial": sides[0][:, ::-1].copy(), "boundary": np.concatenate(sides),
        }  # fmt: skip
