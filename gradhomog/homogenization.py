"""The result of one step of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gradhomog.conflict import cosines
from gradhomog.jacobian import Direction


@dataclass(frozen=True)
class Stage:
    """The Gramian `[tasks, tasks]`, float64, of the rows after a homogenizer's `mix` or `rows`."""

    name: str
    gramian: Tensor


@dataclass(frozen=True)
class Homogenization:
    """The result of one step.

    Attributes:
        direction: the mean of the homogenized rows, by parameter name.
        tasks: indices of the tasks that took part (all, unless `nonfinite="drop"` or an absent loss left some out).
        weights: the share of each of these tasks' own rows in the direction, float64 `[tasks]`: direction =
            1/N Σ_i weights_i · row_i. None if a stage replaced the rows, or groups of parameters have theirs (`per`).
        gramian: of the rows as given, float64 `[tasks, tasks]`; None unless a stage needed it or `inspect` was set.
        stages: with `inspect`, one for each `mix` and `rows` stage, in order.
        measured: numbers that the homogenizers report about the step, by name.
        unconverged: names of the homogenizers whose solver did not converge.
    """

    direction: Direction
    tasks: tuple[int, ...]
    weights: Tensor | None
    gramian: Tensor | None
    stages: Sequence[Stage] = ()
    measured: Mapping[str, Mapping[str, float | Sequence[float]]] = field(default_factory=dict)
    unconverged: tuple[str, ...] = ()

    @property
    def norms(self) -> Tensor | None:
        """Norms of the rows as given, float64 `[tasks]`; None without `gramian`, which `inspect=True` always gives."""
        return None if self.gramian is None else self.gramian.diagonal().clamp_min(0).sqrt()

    @property
    def cosines(self) -> Tensor | None:
        """Cosines between the rows as given, float64 `[tasks, tasks]`; None without `gramian`."""
        return None if self.gramian is None else cosines(self.gramian)


@dataclass(frozen=True, eq=False)
class PendingStep:
    """A step that is computed while the homogenizers' states are still those before it.

    Attributes:
        result: of the step.
        commit: assigns the new state of every homogenizer and counts the step.
    """

    result: Homogenization
    commit: Callable[[], None]
