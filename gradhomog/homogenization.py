"""The result of one step of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from gradhomog.conflict import cosines
from gradhomog.jacobian import Direction


@dataclass(frozen=True)
class StageGramian:
    """The Gramian of the rows after one `mix` or `rows` stage, float64 `[tasks, tasks]`."""

    name: str
    gramian: Tensor


@dataclass(frozen=True)
class Homogenization:
    """The result of one step.

    Attributes:
        direction: the mean of the homogenized rows, by parameter name.
        tasks: indices of the tasks in the step (all, except those dropped by `nonfinite="drop"` and absent tasks).
        weights: the weight of each of these tasks' rows in the direction, float64 `[tasks]`: direction =
            1/N Σ_i weights_i · row_i. None if a stage replaced the rows, or if groups of parameters were homogenized
            separately (`per`).
        gramian: Gramian of the rows before the first stage, float64 `[tasks, tasks]`; None unless a stage read it or
            `inspect` was set.
        stages: with `inspect`, one entry for each `mix` and `rows` stage, in order.
        measured: numbers that the homogenizers report about the step, by name.
        unconverged: names of the homogenizers whose solver did not converge.
        exchanged: what ranks exchanged (see `Ranks`): `"rows"`, the step is that of one process with all rows;
            `"directions"`, each rank homogenized its rows, and their directions were averaged, which is another method.
    """

    direction: Direction
    tasks: tuple[int, ...]
    weights: Tensor | None
    gramian: Tensor | None
    stages: Sequence[StageGramian] = ()
    measured: Mapping[str, Mapping[str, float | Sequence[float]]] = field(default_factory=dict)
    unconverged: tuple[str, ...] = ()
    exchanged: Literal["nothing", "rows", "directions"] = "nothing"

    @property
    def norms(self) -> Tensor | None:
        """Norms of the rows before the first stage, float64 `[tasks]`; None without `gramian` (see `inspect`)."""
        return None if self.gramian is None else self.gramian.diagonal().clamp_min(0).sqrt()

    @property
    def cosines(self) -> Tensor | None:
        """Cosines between the rows before the first stage, float64 `[tasks, tasks]`; None without `gramian`."""
        return None if self.gramian is None else cosines(self.gramian)


@dataclass(frozen=True, eq=False)
class PendingStep:
    """A computed step whose new homogenizer states are not assigned yet.

    Attributes:
        result: the result of the step.
        commit: assigns the new state of every homogenizer and increments the step count.
    """

    result: Homogenization
    commit: Callable[[], None]
