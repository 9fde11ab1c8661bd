"""Interface of a differential equation: its box, points, residuals and solution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from gradhomog.experiments.problems.pinn.network import TanhNetwork

PDE = "pde"
"""The task whose residual is that of the equation inside the box; the others are its conditions on the sides."""

CONDITIONS = "conditions"
"""The task of all conditions together."""


@dataclass(frozen=True)
class PinnOptions:
    """Options of all physics-informed problems.

    Attributes:
        depth: hidden layers; `network.width` is their width.
        conditions: `"merged"`: two tasks, the residual of the equation and the sum of the losses of all conditions, as
            in the paper of DCGD; `"separate"`: one task for each kind of condition.
        state: the tested state: `"lowest_loss"`: that with the lowest sum of the losses of a batch, as in the code of
            DCGD, which needs no solution; `"last"`; `"lowest_error"`: that with the lowest validation error.
        error: the score: `"relative_l2"`, ‖û − u‖ / ‖u‖, or `"mse"`, the mean squared error.
    """

    name: str = ""
    depth: Annotated[int, Ge(1)] = 3
    conditions: Literal["merged", "separate"] = "merged"
    state: Literal["lowest_loss", "last", "lowest_error"] = "lowest_loss"
    error: Literal["relative_l2", "mse"] = "relative_l2"


class Equation(ABC):
    """A differential equation on a box with conditions on its sides, and its solution.

    A condition is a list of residual vectors r_k `[n_k]`; its loss is Σ_k mean r_k².

    Attributes:
        lower, upper: corners of the box.
        standardize: as in `TanhNetwork`.
        conditions: names of the conditions.
        grid: number of test points per coordinate.
    """

    lower: Sequence[float]
    upper: Sequence[float]
    standardize: bool
    conditions: tuple[str, ...]
    grid: tuple[int, ...]

    @abstractmethod
    def draw(self, options: Any, random: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """Return new points `[points, inputs]` by name: those inside as `PDE`, and those of the conditions."""

    @abstractmethod
    def pde(self, network: TanhNetwork, points: Tensor) -> Tensor:
        """Return the residual of the equation `[points]`."""

    @abstractmethod
    def condition(self, name: str, network: TanhNetwork, points: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the residual vectors of a condition."""

    @abstractmethod
    def solution(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the solution u `[points]`, float64."""

    def tasks(self, options: PinnOptions) -> tuple[str, ...]:
        return (PDE, *self.conditions) if options.conditions == "separate" else (PDE, CONDITIONS)

    def residual(self, task: str, network: TanhNetwork, points: Mapping[str, Tensor]) -> Tensor:
        """Return the residual r `[n]` of a task, differentiable w.r.t. the network; its loss is mean r².

        For a task of several residual vectors, r contains √(n/n_k) r_k, so that mean r² = Σ_k mean r_k².
        """
        if task == PDE:
            return self.pde(network, points[PDE])
        names = self.conditions if task == CONDITIONS else (task,)
        parts = [part for name in names for part in self.condition(name, network, points)]
        if len(parts) == 1:
            return parts[0]
        total = sum(map(len, parts))
        return torch.cat([part * (total / len(part)) ** 0.5 for part in parts])
