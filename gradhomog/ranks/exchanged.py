"""A Jacobian whose rows were exchanged: each rank stores one range of columns of all rows; directions are gathered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from gradhomog.ranks.column_split import ColumnSplit
from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.rows import Direction, Jacobian
from gradhomog.rows.arithmetic import (
    Product,
    block_products,
    finite_rows,
    gramian,
    squared_norms,
    weighted_sum,
)
from gradhomog.rows.device_copies import task_index, to_device


@final
class ExchangedJacobian(Jacobian):
    """N rows of which each of K ranks received one range of columns; statistics are sums over the ranks.

    Every method must be called on all ranks in the same order. Total norms, total Gramians and the check for finite
    rows exchange N or N² numbers, norms and Gramians of each parameter as many for each; `weighted_mean` exchanges one
    row, `materialize` all rows.

    Args:
        columns: for each of `split.ranges` the columns of this rank, `[tasks, width]`.
    """

    def __init__(self, columns: Sequence[Tensor], split: ColumnSplit, communicator: GroupCommunicator) -> None:
        self._columns, self._split, self._communicator = list(columns), split, communicator
        self.names = tuple(split.like)
        self.tasks, self.device, self.requires_grad = len(columns[0]), columns[0].device, False
        self.dtype = min((part.dtype for part in columns), key=lambda dtype: dtype.itemsize)

    def weighted_mean(self, weights: Tensor) -> Direction:
        shares = to_device(weights.detach() / self.tasks, self.device)
        return self._gather([weighted_sum(part, shares) for part in self._columns])

    def row(self, task: int) -> Direction:
        return self._gather([part[task] for part in self._columns])

    def materialize(self) -> dict[str, Tensor]:
        rows = [self.row(task) for task in range(self.tasks)]
        return {name: torch.stack([row[name] for row in rows]) for name in self.names}

    def row_like(self) -> Mapping[str, Tensor]:
        return self._split.like

    def select(self, tasks: Sequence[int]) -> Jacobian:
        index = task_index(tasks, self.device)
        return ExchangedJacobian([part[index] for part in self._columns], self._split, self._communicator)

    def select_parameters(self, names: Sequence[str]) -> Jacobian:
        """Return the blocks of one of the groups by which the rows were exchanged; nothing is sent."""
        split = self._split.select(names)
        columns = dict(zip(self._split.ranges, self._columns, strict=True))
        return ExchangedJacobian([columns[part] for part in split.ranges], split, self._communicator)

    def detach(self) -> Jacobian:
        return self

    def finite_tasks(self) -> list[bool]:
        nonfinite = [not finite for finite in finite_rows(self._columns)]
        counts = self._communicator.sum_on_cpu(torch.tensor(nonfinite, dtype=torch.float64))
        return [count == 0 for count in counts.tolist()]

    def compute_gramians(self) -> Tensor:
        return self._sum(self._by_name(gramian))

    def compute_squared_norms(self) -> Tensor:
        return self._sum(self._by_name(squared_norms))

    def compute_total_gramian(self) -> Tensor:
        return self._sum(torch.stack(block_products(self._columns, gramian)).sum(0))

    def compute_total_squared_norms(self) -> Tensor:
        return self._sum(torch.stack(block_products(self._columns, squared_norms)).sum(0))

    def _by_name(self, product: Product) -> Tensor:
        blocks = {
            name: part[:, first:last]
            for part, own in zip(self._columns, self._split.ranges, strict=True)
            for name, first, last in own.columns()
        }
        return torch.stack(block_products([blocks[name] for name in self.names], product))

    def _sum(self, statistic: Tensor) -> Tensor:
        return self._communicator.sum_on_cpu(statistic)

    def _gather(self, vectors: Sequence[Tensor]) -> Direction:
        return self._split.unflatten([self._communicator.all_gather(vector) for vector in vectors])
