"""The abstract Jacobian and its dense, repeated and mixed forms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from gradhomog.errors import DataError
from gradhomog.rows import arithmetic
from gradhomog.rows.arithmetic import all_finite, finite_rows, matrix_product, mix_rows, weighted_sum
from gradhomog.rows.device_copies import task_index, to_device
from gradhomog.rows.statistics import RowStatistics

Direction = dict[str, Tensor]
"""A direction or one row: a tensor `[*shape]` for each parameter name."""


class Jacobian(RowStatistics):
    """One gradient per task: row i is ∂L_i/∂θ, split into blocks by parameter name.

    Most methods require only a Gramian, norms and a weighted mean, so a subclass decides how the rows are stored: in
    one tensor per parameter, or in the tensors that autograd returned. Statistics are computed once. Do not modify
    returned tensors in place.

    Attributes:
        tasks: N, the number of rows.
        names: the names of the blocks, in order; `("",)` for a Jacobian from one tensor.
        device, dtype, requires_grad: those of the rows; dtype is the narrowest among the blocks. Norms, Gramians and
            mixing matrices are on the CPU.
    """

    tasks: int
    names: tuple[str, ...]
    device: torch.device
    dtype: torch.dtype
    requires_grad: bool

    # -- implemented by subclasses -----------------------------------------------------------------------------------

    @abstractmethod
    def weighted_mean(self, weights: Tensor) -> Direction:
        """Return `1/N Σ_i weights_i · row_i` for weights `[tasks]`, in the rows' dtype. Cost: one read of the rows."""

    @abstractmethod
    def materialize(self) -> dict[str, Tensor]:
        """Return the rows as tensors `[tasks, *shape]` by name; do not modify them in place."""

    @abstractmethod
    def row_like(self) -> Mapping[str, Tensor]:
        """Return tensors `[*shape]` by name with shape, dtype and device of one row, and arbitrary values."""

    @abstractmethod
    def select(self, tasks: Sequence[int]) -> Jacobian:
        """Return the rows of some tasks."""

    @abstractmethod
    def detach(self) -> Jacobian:
        """Return the same rows, detached from the graph."""

    def select_parameters(self, names: Sequence[str]) -> Jacobian:
        """Return the blocks of some parameters; overridden where they need not be materialized."""
        blocks = self.materialize()
        return DenseJacobian({name: blocks[name] for name in names})

    def finite_tasks(self) -> list[bool]:
        """For each row, True if it contains neither NaN nor infinity. Cost: one read of the rows."""
        return finite_rows(self.materialize().values())

    def all_finite(self, tensors: Iterable[Tensor]) -> bool:
        """True if no tensor contains NaN or infinity: a direction of these rows, or what was computed with them.

        Overridden where ranks store different parts of a direction, and must come to the same result.
        """
        return all_finite(tensors)

    def row(self, task: int) -> Direction:
        """Return one row, without a copy if the rows are stored; do not modify it in place."""
        return {name: block[task] for name, block in self.materialize().items()}

    def mean(self) -> Direction:
        """Return the mean of the rows."""
        return self.weighted_mean(torch.ones(self.tasks, dtype=torch.float64))

    # -- new Jacobians -----------------------------------------------------------------------------------------------

    def mix(self, mixing: Tensor) -> Jacobian:
        """Return C·J for a matrix `[tasks, tasks]`, or rows times weights `[tasks]`, lazily: no row is computed yet."""
        return MixedJacobian(self, mixing)

    def map(self, function: Callable[[Tensor], Tensor]) -> Jacobian:
        """Apply a function to each block `[tasks, *shape]`; it must return a block of the same shape."""
        return DenseJacobian({name: function(value) for name, value in self.materialize().items()})

    def replace(self, blocks: Mapping[str, Tensor]) -> Jacobian:
        """Return a Jacobian of the rows `blocks`, `[tasks, *shape]`, with the names and order of this one."""
        return DenseJacobian({name: blocks[name] for name in self.names})

    def repeat(self, direction: Mapping[str, Tensor]) -> Jacobian:
        """Return N rows equal to `direction`, a new tensor `[*shape]` for each name; only one row is stored."""
        return RepeatedJacobian({name: direction[name] for name in self.names}, self.tasks)


@final
class DenseJacobian(Jacobian):
    """Rows stored in one tensor `[tasks, *shape]` per parameter; never concatenated, never copied as a whole."""

    def __init__(self, blocks: Mapping[str, Tensor]) -> None:
        self.blocks = dict(blocks)
        first = next(iter(self.blocks.values()))
        self.names, self.tasks, self.device = tuple(self.blocks), first.shape[0], first.device
        self.dtype, self.requires_grad = first.dtype, False
        for block in self.blocks.values():
            if block.dtype.itemsize < self.dtype.itemsize:
                self.dtype = block.dtype
            if block.requires_grad:
                self.requires_grad = True

    def materialize(self) -> dict[str, Tensor]:
        return dict(self.blocks)

    def row_like(self) -> Mapping[str, Tensor]:
        return {name: block[0] for name, block in self.blocks.items()}

    def select(self, tasks: Sequence[int]) -> Jacobian:
        index = task_index(tasks, self.device)
        return DenseJacobian({name: block[index] for name, block in self.blocks.items()})

    def detach(self) -> Jacobian:
        return DenseJacobian({name: block.detach() for name, block in self.blocks.items()})

    def compute_gramians(self) -> Tensor:
        return torch.stack(arithmetic.block_products(self.blocks.values(), arithmetic.gramian))

    def compute_squared_norms(self) -> Tensor:
        return torch.stack(arithmetic.block_products(self.blocks.values(), arithmetic.squared_norms))

    def compute_total_gramian(self) -> Tensor:
        gramians = arithmetic.block_products(self.blocks.values(), arithmetic.gramian)
        return gramians[0] if len(gramians) == 1 else torch.stack(gramians).sum(0)

    def compute_total_squared_norms(self) -> Tensor:
        squares = arithmetic.block_products(self.blocks.values(), arithmetic.squared_norms)
        return squares[0] if len(squares) == 1 else torch.stack(squares).sum(0)

    def weighted_mean(self, weights: Tensor) -> Direction:
        shares, mean = weights / self.tasks, {}
        if self.device.type != "cpu":
            shares = to_device(shares, self.device)  # one copy for all blocks
        for name, block in self.blocks.items():
            mean[name] = weighted_sum(block, shares)
        return mean


@final
class RepeatedJacobian(Jacobian):
    """N equal rows, of which one is stored: the result of a method that replaces every row by its direction."""

    def __init__(self, direction: Mapping[str, Tensor], tasks: int) -> None:
        self._row = DenseJacobian({name: value[None] for name, value in direction.items()})
        self._direction, self.tasks = dict(direction), tasks
        self.names, self.device, self.dtype = self._row.names, self._row.device, self._row.dtype
        self.requires_grad = self._row.requires_grad

    def materialize(self) -> dict[str, Tensor]:
        return {name: value.expand(self.tasks, *value.shape) for name, value in self._direction.items()}

    def row_like(self) -> Mapping[str, Tensor]:
        return self._direction

    def select(self, tasks: Sequence[int]) -> Jacobian:
        return RepeatedJacobian(self._direction, len(tasks))

    def detach(self) -> Jacobian:
        return RepeatedJacobian({name: value.detach() for name, value in self._direction.items()}, self.tasks)

    def finite_tasks(self) -> list[bool]:
        return self._row.finite_tasks() * self.tasks

    def compute_gramians(self) -> Tensor:
        return self._row.compute_gramians().expand(-1, self.tasks, self.tasks)

    def compute_squared_norms(self) -> Tensor:
        return self._row.compute_squared_norms().expand(-1, self.tasks)

    def weighted_mean(self, weights: Tensor) -> Direction:
        return self._row.weighted_mean(weights.mean()[None])

    def mean(self) -> Direction:
        return dict(self._direction)


@final
class MixedJacobian(Jacobian):
    """C·J of another Jacobian J, lazily: its Gramian is C·G·Cᵀ, its mean a weighted mean of J.

    Attributes:
        source: J, which is not a MixedJacobian.
        mixing: C, float64 on the CPU: weights `[tasks]` (a diagonal C) or a matrix `[tasks, tasks]`.
    """

    source: Jacobian
    mixing: Tensor

    def __init__(self, source: Jacobian, mixing: Tensor) -> None:
        tasks = source.tasks
        if mixing.shape not in ((tasks,), (tasks, tasks)):
            raise DataError(f"`mixing` must have shape [{tasks}] or [{tasks}, {tasks}]; got {tuple(mixing.shape)}.")
        mixing = mixing.to("cpu", torch.float64)
        if isinstance(source, MixedJacobian):
            self.source, self.mixing = source.source, matrix_product(mixing, source.mixing)
        else:
            self.source, self.mixing = source, mixing
        self.names, self.tasks, self.device = source.names, source.tasks, source.device
        self.dtype, self.requires_grad = source.dtype, source.requires_grad or mixing.requires_grad

    def weights(self) -> Tensor:
        """Return the weight of each row of J in N times the mean: the column sums of C, `[tasks]`."""
        return self.mixing if self.mixing.dim() == 1 else self.mixing.sum(0)

    def materialize(self) -> dict[str, Tensor]:
        return {name: mix_rows(block, self.mixing) for name, block in self.source.materialize().items()}

    def row_like(self) -> Mapping[str, Tensor]:
        return self.source.row_like()

    def select(self, tasks: Sequence[int]) -> Jacobian:
        return DenseJacobian(self.materialize()).select(tasks)

    def detach(self) -> Jacobian:
        return MixedJacobian(self.source.detach(), self.mixing.detach())

    def compute_gramians(self) -> Tensor:
        return self._congruence(self.source.block_gramians)

    def compute_total_gramian(self) -> Tensor:
        return self._congruence(self.source.total_gramian)

    def compute_squared_norms(self) -> Tensor:
        if self.mixing.dim() == 1:  # norms are enough
            return self.source.block_squared_norms * self.mixing.square()
        return self.block_gramians.diagonal(dim1=1, dim2=2).clamp_min(0)

    def compute_total_squared_norms(self) -> Tensor:
        if self.mixing.dim() == 1:
            return self.source.total_squared_norms * self.mixing.square()
        return self.total_gramian.diagonal().clamp_min(0)

    def _congruence(self, gramian: Tensor) -> Tensor:
        """Return C·G·Cᵀ."""
        if self.mixing.dim() == 1:
            return self.mixing[:, None] * gramian * self.mixing
        return self.mixing @ gramian @ self.mixing.T

    def weighted_mean(self, weights: Tensor) -> Direction:
        weights = weights.to(self.mixing)
        return self.source.weighted_mean(weights * self.mixing if self.mixing.dim() == 1 else weights @ self.mixing)

    def mean(self) -> Direction:
        return self.source.weighted_mean(self.mixing if self.mixing.dim() == 1 else self.mixing.sum(0))
