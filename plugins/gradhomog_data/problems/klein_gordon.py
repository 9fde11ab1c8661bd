"""The Klein-Gordon equation with a cubic term, a fast oscillation in time, and an initial velocity."""

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


class KleinGordon(Pinn):
    """u_tt − u_xx + u³ = f for (t, x) in [0, 1]², with f such that u = x cos 5πt + (t x)³.

    Initial condition: u = x and u_t = 0 at t = 0, with the sum of both means as its loss. Boundary condition: u at
    x = 0 and x = 1, with the sum of the means over both sides as its loss.

    Source: Wang, Teng and Perdikaris 2020 (arXiv 2001.04536), section 4.2; number of points and test grid are those of
    the code of Hwang and Lim 2024 (DCGD, arXiv 2409.18426).

    Args:
        interior: points of a step inside.
        initial: points of a step at t = 0, for value and velocity.
        boundary: points of a step on each of the two sides.
        options: as in `Pinn`.
    """

    lower, upper = (0.0, 0.0), (1.0, 1.0)
    standardize = True
    parts = ("initial", "boundary")
    grid = (100, 100)

    def __init__(
        self,
        run: ProblemRun,
        *,
        interior: Annotated[int, Ge(1)] = 128,
        initial: Annotated[int, Ge(1)] = 128,
        boundary: Annotated[int, Ge(1)] = 128,
        **options: Unpack[PinnOptions],
    ) -> None:
        self.counts = interior, initial, boundary
        super().__init__(run, **options)

    def draw(self, random: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        interior, initial, boundary = self.counts
        sides = [uniform(random, boundary, (0, x), (1, x)) for x in (0, 1)]
        return {
            PDE: uniform(random, interior, self.lower, self.upper),
            "initial": uniform(random, initial, (0, 0), (0, 1)),
            "boundary": np.concatenate(sides),
        }

    def pde(self, points: Tensor) -> Tensor:
        u, _, _, u_tt, u_xx = self.network(points, first_order=2, second_order=2)
        residual: Tensor = u_tt - u_xx + u**3 - source(points)
        return residual

    def condition(self, name: str, points: Mapping[str, Tensor]) -> list[Tensor]:
        if name == "initial":
            u, u_t = self.network(points["initial"], first_order=1)
            return [u - points["initial"][:, 1], u_t]
        u = self.network(points["boundary"])[0] - exact(points["boundary"])
        return [*u.chunk(2)]

    def solution(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        return exact(torch.from_numpy(points)).numpy()


def exact(points: Tensor) -> Tensor:
    """Return u of points (t, x), `[points]`."""
    t, x = points.unbind(1)
    return x * torch.cos(5 * math.pi * t) + (t * x) ** 3


def source(points: Tensor) -> Tensor:
    """Return f of points (t, x), `[points]`."""
    t, x = points.unbind(1)
    acceleration = -25 * math.pi**2 * x * torch.cos(5 * math.pi * t) + 6 * t * x**3
    return acceleration - 6 * x * t**3 + exact(points) ** 3


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return specification(
        KleinGordon,
        "the Klein-Gordon equation with a cubic term, a fast oscillation in time, and an initial velocity",
        "Wang, Teng, Perdikaris 2020, arXiv:2001.04536, section 4.2",
    )
