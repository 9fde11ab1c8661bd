"""A Jacobian of which every rank computes and keeps some columns of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from gradhomog.jacobian import Direction, Jacobian, all_finite
from gradhomog.ranks.collectives import Collectives


class LocalColumns(Jacobian):
    """N rows of which each rank keeps some columns; statistics are sums over the ranks, directions stay where they are.

    Every method must be called on all ranks in the same order. Norms and Gramians exchange N or N² numbers; rows,
    directions and `materialize` are those of this rank's columns, and exchange nothing.

    Args:
        rows: the columns of this rank.
        replicas: the number of ranks that keep the same columns.
    """

    def __init__(self, rows: Jacobian, collectives: Collectives, replicas: int = 1) -> None:
        self._rows, self._collectives, self._replicas = rows, collectives, replicas
        self.names, self.tasks, self.device = rows.names, rows.tasks, rows.device
        self.dtype, self.requires_grad = rows.dtype, False

    def weighted_mean(self, weights: Tensor) -> Direction:
        return self._rows.weighted_mean(weights.detach())

    def materialize(self) -> dict[str, Tensor]:
        return self._rows.materialize()

    def row_like(self) -> Mapping[str, Tensor]:
        return self._rows.row_like()

    def select(self, tasks: Sequence[int]) -> Jacobian:
        return LocalColumns(self._rows.select(tasks), self._collectives, self._replicas)

    def detach(self) -> Jacobian:
        return self

    def finite_tasks(self) -> list[bool]:
        infinite = [float(not finite) for finite in self._rows.finite_tasks()]
        return [count == 0 for count in self._collectives.all_gather_numbers(infinite).sum(0).tolist()]

    def all_finite(self, tensors: Iterable[Tensor]) -> bool:
        return bool(self._collectives.all_gather_numbers([float(all_finite(tensors))]).all())

    def compute_gramians(self) -> Tensor:
        return self._sum(self._rows.compute_gramians())

    def compute_squared_norms(self) -> Tensor:
        return self._sum(self._rows.compute_squared_norms())

    def compute_total_gramian(self) -> Tensor:
        return self._sum(self._rows.compute_total_gramian())

    def compute_total_squared_norms(self) -> Tensor:
        return self._sum(self._rows.compute_total_squared_norms())

    def _sum(self, statistic: Tensor) -> Tensor:
        return self._collectives.sum_on_cpu(statistic / self._replicas)
