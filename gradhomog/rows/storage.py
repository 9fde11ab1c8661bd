"""The interface between a Jacobian and the storage of its rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.rows.arithmetic import Product, all_finite

Direction = dict[str, Tensor]
"""A direction or one row: a tensor `[*shape]` for each parameter name."""


class Rows(ABC):
    """N rows, split into blocks by parameter name; they may be computed when they are first required.

    Attributes:
        like: a tensor for each name, with the dtype and device of the rows.
        tasks: N.
        requires_grad: True if the rows have a graph.
    """

    like: Mapping[str, Tensor]
    tasks: int
    requires_grad: bool

    @abstractmethod
    def stored(self) -> StoredRows:
        """Return the rows in memory."""

    @abstractmethod
    def products(self, product: Product, by_block: bool) -> Tensor:
        """Return `gramian` or `squared_norms` of the rows, float64 on the CPU.

        Their shape is `[tasks, tasks]` or `[tasks]`, and for `by_block` `[blocks, ...]`, one for each name.
        """

    @abstractmethod
    def finite_tasks(self) -> list[bool]:
        """For each row, True if it contains neither NaN nor infinity. Cost: one read of the rows."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor, divisor: float = 1) -> Direction:
        """Return `Σ_i weights_i / divisor · row_i` for weights `[tasks]`, in the rows' dtype.

        The divisor is separate, because one backward pass for the sum can divide the gradients of heads by a weight of
        1 exactly.
        """

    def row_like(self) -> Mapping[str, Tensor]:
        """Return tensors `[*shape]` by name with shape, dtype and device of one row, and arbitrary values."""
        return self.like

    # Of a direction. Overridden where ranks store different parts of it, and must come to the same result.
    all_finite = staticmethod(all_finite)


class StoredRows(Rows):
    """N rows in memory."""

    def stored(self) -> StoredRows:
        return self

    @abstractmethod
    def row(self, task: int) -> Direction:
        """Return one row; do not modify it in place."""

    @abstractmethod
    def select(self, tasks: Sequence[int]) -> StoredRows:
        """Return the rows of some tasks."""

    @abstractmethod
    def select_parameters(self, names: Sequence[str]) -> StoredRows:
        """Return the blocks of some parameters."""

    @abstractmethod
    def detach(self) -> StoredRows:
        """Return the same rows, detached from the graph."""

    def materialize(self) -> dict[str, Tensor]:
        """Return the rows as tensors `[tasks, *shape]` by name; do not modify them in place."""
        rows = [self.row(task) for task in range(self.tasks)]
        return {name: torch.stack([row[name] for row in rows]) for name in self.like}
