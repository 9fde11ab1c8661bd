"""Burgers' equation with small viscosity: a smooth initial condition becomes a steep front."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Annotated, Unpack

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from gradhomog import ProblemRun, ProblemSpec, hookimpl
from gradhomog_data.problems.pinn.equation import PDE, Pinn, PinnOptions, latin_hypercube, specification

VISCOSITY = 0.01 / math.pi


class Burgers(Pinn):
    """u_t + u u_x = ν u_xx for (x, t) in [−1, 1] × [0, 1], ν = 0.01/π, u = −sin πx at t = 0 and u = 0 at x = ±1.

    The points of each part are a Latin hypercube. The loss of the boundary is one mean over both sides.

    Source: Raissi, Perdikaris and Karniadakis 2019 (arXiv 1711.10561), appendix A.1; number of points and test grid are
    those of the code of Hwang and Lim 2024 (DCGD, arXiv 2409.18426).

    Deviations from that code: 1. The solution is the Cole-Hopf integral; the code reads it from a file, on 256 × 100
    points of −1 ≤ x ≤ 1 and 0 ≤ t ≤ 0.99, and the test grid here has t up to 1. 2. Points of the conditions are drawn
    from the sides; the code draws them, without replacement, from the points of the file on the sides.

    Args:
        interior: points of a step inside.
        initial: points of a step at t = 0.
        boundary: points of a step on each of the two sides.
        options: as in `Pinn`.
    """

    lower, upper = (-1.0, 0.0), (1.0, 1.0)
    standardize = False
    parts = ("initial", "boundary")
    grid = (256, 100)

    def __init__(
        self,
        run: ProblemRun,
        *,
        interior: Annotated[int, Ge(1)] = 1280,
        initial: Annotated[int, Ge(1)] = 42,
        boundary: Annotated[int, Ge(1)] = 42,
        **options: Unpack[PinnOptions],
    ) -> None:
        self.counts = interior, initial, boundary
        super().__init__(run, **options)

    def draw(self, random: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        interior, initial, boundary = self.counts
        sides = [latin_hypercube(random, boundary, (x, 0), (x, 1)) for x in (-1, 1)]
        return {
            PDE: latin_hypercube(random, interior, self.lower, self.upper),
            "initial": latin_hypercube(random, initial, (-1, 0), (1, 0)),
            "boundary": np.concatenate(sides),
        }

    def pde(self, points: Tensor) -> Tensor:
        u, u_x, u_t, u_xx = self.network(points, first_order=2, second_order=1)
        residual: Tensor = u_t + u * u_x - VISCOSITY * u_xx
        return residual

    def condition(self, name: str, points: Mapping[str, Tensor]) -> list[Tensor]:
        u: Tensor = self.network(points[name])[0]
        return [u + torch.sin(math.pi * points[name][:, 0]) if name == "initial" else u]

    def solution(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        return _solution(points.tobytes(), len(points))


@functools.lru_cache(maxsize=4)
def _solution(content: bytes, count: int) -> NDArray[np.float64]:
    """The solution at points, computed once for each grid: it takes as long as hundreds of steps."""
    points = np.frombuffer(content).reshape(count, 2)
    return burgers_solution(points[:, 0], points[:, 1], VISCOSITY)


@hookimpl
def gradhomog_problem() -> ProblemSpec:
    return specification(
        Burgers,
        "Burgers' equation with small viscosity: a smooth initial condition becomes a steep front",
        "Raissi, Perdikaris, Karniadakis 2019, arXiv:1711.10561",
    )


NODES = 100
"""Nodes of the quadrature: values for ν = 0.01/π and t ≤ 1 differ from those of 220 nodes by less than 1e-14."""

CHUNK = 4096
"""Points whose integrands, `[points, nodes]`, are computed at the same time."""


def burgers_solution(
    x: NDArray[np.float64], t: NDArray[np.float64], viscosity: float, nodes: int = NODES
) -> NDArray[np.float64]:
    """Return u(x, t) of u_t + u u_x = ν u_xx with u(x, 0) = −sin πx and u(±1, t) = 0.

    u = −∫ sin(π(x − η)) f(x − η) e^(−η²/4νt) dη / ∫ f(x − η) e^(−η²/4νt) dη,   f(y) = e^(−cos(πy) / 2πν)

    Gauss-Hermite quadrature with η = √(4νt) s; the largest exponent is subtracted, because f exceeds e^50.

    Args:
        x, t: coordinates `[points]`, t ≥ 0.
        viscosity: ν > 0. With 100 nodes, the error at t = 0.7 is 4e-8 for ν = 0.001 and 0.3 for ν = 0.0001: the
            smaller ν, the more nodes are needed.
        nodes: nodes of the quadrature, ≥ 1.

    Source: Basdevant et al. 1986, Computers and Fluids 14, equation (2.5).

    >>> burgers_solution(np.array([0.5, 0.5]), np.array([0.0, 0.5]), 0.01 / np.pi).round(6)
    array([-1.     , -0.59277])
    """
    positions, weights = np.polynomial.hermite.hermgauss(nodes)
    return np.concatenate([
        _quadrature(x[start : start + CHUNK], t[start : start + CHUNK], viscosity, positions, weights)
        for start in range(0, len(x), CHUNK)
    ])  # fmt: skip


def _quadrature(
    x: NDArray[np.float64],
    t: NDArray[np.float64],
    viscosity: float,
    positions: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    y = np.pi * (x[:, None] - np.sqrt(4 * viscosity * t)[:, None] * positions)
    exponent = -np.cos(y) / (2 * np.pi * viscosity)
    # The largest exponent with its weight: at the ends of the range, weights are as small as f is large.
    exponent += np.log(weights)
    density = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return np.asarray(-(np.sin(y) * density).sum(axis=1) / density.sum(axis=1))
