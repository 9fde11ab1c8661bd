"""The storage of a Jacobian's rows: its interface, rows computed on demand, and rows in one tensor per name."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from gradhomog.errors import NonfiniteError
from gradhomog.rows import arithmetic
from gradhomog.rows.arithmetic import Product, all_finite, as_matrix, column_chunks, finite_rows, row_sums
from gradhomog.rows.device_copies import task_index, to_device

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
        """Return `Σ_i weights_i / divisor · row_i` for weights `[tasks]`, float64 on the CPU, in the rows' dtype.

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


class LazyRows(Rows):
    """Rows of losses, computed on demand.

    A pipeline that reads neither norms, inner products nor rows (weights from losses, or from features) reads only the
    weighted mean at its end, by one backward pass instead of N.

    Attributes:
        computed: True if the rows are in memory.
        freed: True if the pass of a weighted sum has freed the graph, so that the rows cannot be computed.
    """

    computed: bool = False
    freed: bool = False

    @abstractmethod
    def compute(self) -> StoredRows:
        """Compute the rows; called once."""

    @abstractmethod
    def sum_in_one_pass(self, weights: Tensor, divisor: float) -> Direction | None:
        """Return what `weighted_sum` returns, by one backward pass; None if the rows are required for it."""

    def stored(self) -> StoredRows:
        return self._stored

    def products(self, product: Product, by_block: bool) -> Tensor:
        return self._stored.products(product, by_block)

    def finite_tasks(self) -> list[bool]:
        return self._stored.finite_tasks()

    def weighted_sum(self, weights: Tensor, divisor: float = 1) -> Direction:
        found = None if self.computed else self.sum_in_one_pass(weights, divisor)
        return self._stored.weighted_sum(weights, divisor) if found is None else found

    @functools.cached_property
    def _stored(self) -> StoredRows:
        if self.freed:  # by the pass of a weighted mean, which is not finite
            raise NonfiniteError(
                "the gradient of the shared parameters is not finite, although every loss is. Lower the learning rate. "
                "Nothing was changed. All tasks share one backward pass; to identify the task, create the pipeline by "
                'gradhomog.pipeline(..., nonfinite="drop").'
            )
        rows, self.computed = self.compute(), True
        return rows


@final
class DenseRows(StoredRows):
    """Rows stored in one tensor `[tasks, *shape]` per parameter; never concatenated, never copied as a whole."""

    def __init__(self, blocks: Mapping[str, Tensor]) -> None:
        self.blocks = self.like = dict(blocks)
        first = next(iter(self.blocks.values()))
        self.tasks, self._device, self.requires_grad = first.shape[0], first.device, False
        for block in self.blocks.values():
            if block.requires_grad:
                self.requires_grad = True

    def row(self, task: int) -> Direction:
        return {name: block[task] for name, block in self.blocks.items()}

    def materialize(self) -> dict[str, Tensor]:
        return dict(self.blocks)

    def row_like(self) -> Mapping[str, Tensor]:
        return self.row(0)

    def select(self, tasks: Sequence[int]) -> DenseRows:
        index = task_index(tasks, self._device)
        return DenseRows({name: block[index] for name, block in self.blocks.items()})

    def select_parameters(self, names: Sequence[str]) -> DenseRows:
        return DenseRows({name: self.blocks[name] for name in names})

    def detach(self) -> DenseRows:
        return DenseRows({name: block.detach() for name, block in self.blocks.items()})

    def finite_tasks(self) -> list[bool]:
        sums = [row_sums(as_matrix(block.detach())).double() for block in self.blocks.values()]
        return finite_rows(torch.stack(sums).sum(0), self.row)

    def products(self, product: Product, by_block: bool) -> Tensor:
        matrices = []
        for block in self.blocks.values():
            matrices.append(block if block.dim() == 2 else as_matrix(block))
        found = arithmetic.products(matrices, product)
        if len(found) == 1 and not by_block:
            return found[0]
        return torch.stack(found) if by_block else torch.stack(found).sum(0)

    def weighted_sum(self, weights: Tensor, divisor: float = 1) -> Direction:
        """Return weighted sums of the rows; for weights `[sums, tasks]` with a first dimension of their number.

        Half precision is summed in float32.
        """
        shares, found = weights, {}
        if divisor != 1:  # in NumPy a quarter of the time
            shares = weights / divisor if weights.requires_grad else torch.from_numpy(weights.numpy() / divisor)
        if self._device.type != "cpu":
            shares = to_device(shares, self._device)  # one copy for all blocks
        # A matrix also for one sum: `matmul` of a vector and one column returns a scalar in some dispatch modes.
        sums = shares if shares.dim() == 2 else shares[None]
        for name, block in self.blocks.items():
            matrix = block if block.dim() == 2 else as_matrix(block)
            if block.dtype.itemsize < 4:
                scaled = sums.to(torch.float32)
                parts = [torch.mm(scaled, part.float()).to(block.dtype) for part in column_chunks(matrix)]
                total = torch.cat(parts, dim=1)
            else:
                total = torch.mm(sums.to(block.dtype), matrix)  # block.mean(0) takes up to twice as long
            total = total if sums is shares else total[0]
            found[name] = total if block.dim() == 2 else total.view((*shares.shape[:-1], *block.shape[1:]))
        return found
