"""A Jacobian w.r.t. quantities that each rank has for itself, such as the features of its examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import final

from torch import Tensor

from gradhomog.ranks.unexchanged import UnexchangedJacobian
from gradhomog.rows import Direction, Jacobian, all_finite


@final
class LocalColumns(UnexchangedJacobian):
    """A Jacobian w.r.t. the features of this rank's examples: rows and directions stay here, only norms, Gramians and
    the check for finite rows are summed over the ranks."""

    def weighted_mean(self, weights: Tensor) -> Direction:
        return self._columns.weighted_mean(weights.detach())

    def row(self, task: int) -> Direction:
        return self._columns.row(task)

    def materialize(self) -> dict[str, Tensor]:
        return self._columns.materialize()

    def row_like(self) -> Mapping[str, Tensor]:
        return self._columns.row_like()

    def select(self, tasks: Sequence[int]) -> Jacobian:
        return LocalColumns(self._columns.select(tasks), self._communicator, self._replicas)

    def select_parameters(self, names: Sequence[str]) -> Jacobian:
        return LocalColumns(self._columns.select_parameters(names), self._communicator, self._replicas)

    def all_finite(self, tensors: Iterable[Tensor]) -> bool:
        return self.finite_on_all_ranks(all_finite(tensors))
