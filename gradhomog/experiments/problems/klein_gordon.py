"""The Klein-Gordon equation with a cubic term, a fast oscillation in time, and an initial velocity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from gradhomog.experiments.problems.pinn.equation import PDE, Equation, PinnOptions
from gradhomog.experiments.problems.pinn.network import TanhNetwork
from gradhomog.experiments.problems.pinn.points import uniform
from gradhomog.experiments.problems.pinn.specification import specification


@dataclass(frozen=True)
class KleinGordonOptions(PinnOptions):
    """Options of `klein_gordon`.

    Attributes:
        interior: points of a step inside.
        initial: points of a step at t = 0, for value and velocity.
        boundary: points of a step on each of the two sides.
    """

    name: Literal["klein_gordon"] = "klein_gordon"
    interior: Annotated[int, Ge(1)] = 128
    initial: Annotated[int, Ge(1)] = 128
    boundary: Annotated[int, Ge(1)] = 128


class KleinGordon(Equation):
    """u_tt − u_xx + u³ = f for (t, x) in [0, 1]², with f such that u = x cos 5πt + (t x)³.

    Initial condition: u = x and u_t = 0 at t = 0, with the sum of both means as its loss. Boundary condition: u at
    x = 0 and x = 1, with the sum of the means over both sides as its loss.

    Source: Wang, Teng and Perdikaris 2020 (arXiv 2001.04536), section 4.2; number of points and test grid are those of
    the code of Hwang and Lim 2024 (DCGD, arXiv 2409.18426).
    """

    lower, upper = (0.0, 0.0), (1.0, 1.0)
    standardize = True
    conditions = ("initial", "boundary")
    grid = (100, 100)

    def draw(self, options: Any, random: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        sides = [uniform(random, options.boundary, (0, x), (1, x)) for x in (0, 1)]
        return {
            PDE: uniform(random, options.interior, self.lower, self.upper),
            "initial": uniform(random, options.initial, (0, 0), (0, 1)),
            "boundary": np.concatenate(sides),
        }

    def pde(self, network: TanhNetwork, points: Tensor) -> Tensor:
        u, _, _, u_tt, u_xx = network(points, first_order=2, second_order=2)
        residual: Tensor = u_tt - u_xx + u**3 - source(points)
        return residual

    def condition(self, name: str, network: TanhNetwork, points: Mapping[str, Tensor]) -> list[Tensor]:
        if name == "initial":
            u, u_t = network(points["initial"], first_order=1)
            return [u - points["initial"][:, 1], u_t]
        u = network(points["boundary"])[0] - exact(points["boundary"])
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


PROBLEM = specification(KleinGordon(), KleinGordonOptions)
