"""What one step of a pipeline came to, and what each of its stages made of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gradhomog.conflict import cosines
from gradhomog.rows import Direction


@dataclass(frozen=True)
class Stage:
    """The Gramian `[tasks, tasks]`, float64, of the rows after a homogenizer's `mix` or `rows`."""

    name: str
    gramian: Tensor


@dataclass(frozen=True)
class Homogenization:
    """What one step came to.

    Attributes:
        direction: the mean of the homogenized rows, in the structure of one row.
        tasks: indices of the tasks that took part (all, unless `nonfinite="drop"` dropped some).
        weights: the share of each of these tasks' own rows in the direction, float64 `[tasks]`: direction =
            1/N Σ_i weights_i · row_i. None if a stage replaced the rows.
        gramian: of the rows as given, float64 `[tasks, tasks]`; None unless a stage needed it or `inspect` was asked.
        stages: with `inspect`, one for each `mix` and `rows` stage, in order.
        measured: what the homogenizers tell of the step, by name.
    """

    direction: Direction
    tasks: tuple[int, ...]
    weights: Tensor | None
    gramian: Tensor | None
    stages: Sequence[Stage] = ()
    measured: Mapping[str, Mapping[str, float | Sequence[float]]] = field(default_factory=dict)

    @property
    def norms(self) -> Tensor | None:
        """Norms of the rows as given, float64 `[tasks]`; None without `gramian`, which `inspect=True` gives always."""
        return None if self.gramian is None else self.gramian.diagonal().clamp_min(0).sqrt()

    @property
    def cosines(self) -> Tensor | None:
        """Cosines between the rows as given, float64 `[tasks, tasks]`; None without `gramian`, as `norms`."""
        return None if self.gramian is None else cosines(self.gramian)
