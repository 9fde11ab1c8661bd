"""The Helmholtz equation with a solution that oscillates four times as fast in one coordinate as in the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Unpack

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from gradhomog import ProblemRun, ProblemSpec, hookimpl
from gradhomog_data.problems.pinn.equation import PDE, Pinn, PinnOptions, specification, uniform

WAVES = (1, 4)
"""Half-waves of the solution per unit of each coordinate."""


class Helmholtz(Pinn):
    """u_xx + u_yy + k² u = q in [−1, 1]², u = 0 on its sides, with k = 1 and q such that u = sin πx · sin 4πy.

    The loss of the boundary is the sum of the means over the four sides.

    Source: Wang, Teng and Perdikaris 2020 (arXiv 2001.04536), section 4.1; number of points and test grid are those of
    the code of Hwang and Lim 2024 (DCGD, arXiv 2409.18426).

    Args:
        interior: points of a step inside.
        boundary: points of a step on each of the four sides.
        options: as in `Pinn`.
    """

    lower, upper = (-1.0, -1.0), (1.0, 1.0)
    standardize = True
    parts = ("boundary",)
    grid = (100, 100)

    def __init__(
        self,
        run: ProblemRun,
        *,
        interior: Annotated[int, Ge(1)] = 1280,
        boundary: Annotated[int, Ge(1)] = 128,
        **options: Unpack[PinnOptions],
    ) -> None:
        self.counts = interior, boundary
        super().__init__(run, **options)

    def draw(self, random: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        interior, boundary = self.counts
        sides = [
            uniform(random, boundary, (-1, -1), (1, -1)),
            uniform(random, boundary, (-1, 1), (1, 1)),
            uniform(random, boundary, (-1, -1), (-1, 1)),
            uniform(random, boundary, (1, -1), (1, 1)),
        ]
        inside = uniform(random, interior, self.lower, self.upper)
        return {PDE: inside, "boundary": np.concatenate(sides)}

    def pde(self, points: Tensor) -> Tensor:
        u, _, _, u_xx, u_yy = self.network(points, first_order=2, second_order=2)
        x, y = (points * math.pi).unbind(1)
        first, second = WAVES
        source = (1 - (first**2 + second**2) * math.pi**2) * torch.sin(first * x) * torch.sin(second * y)
        residual: Tensor = u_xx + u_yy + u - source
        return residual

    def condition(self, name: str, points: Mapping[str, Tensor]) -> list[Tensor]:
        return [*self.network(points["boundary"])[0].chunk(4)]

    def solution(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        first, second = WAVES
        return np.asarray(np.sin(first * math.pi * points[:, 0]) * np.sin(second * math.pi * points[:, 1]))


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return specification(
        Helmholtz,
        "the Helmholtz equation, whose solution oscillates four times as fast in one coordinate",
        "Wang, Teng, Perdikaris 2020, arXiv:2001.04536, section 4.1",
    )
