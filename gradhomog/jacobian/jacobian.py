"""The abstract Jacobian, the dense one, one of equal rows, and a lazy mixture of another one's rows."""

from __future__ import annotations

import fnmatch
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.jacobian import arithmetic
from gradhomog.jacobian.arithmetic import finite_rows, matrix_product, mixed, weighted_sum
from gradhomog.square_root import safe_sqrt

Direction = dict[str, Tensor]
"""One row: a tensor `[*shape]` for each parameter name."""


class Jacobian(ABC):
    """One gradient per task: row i is ∂L_i/∂θ, split into blocks by parameter name.

    Most methods need a Gramian, norms and a weighted mean only, so a subclass decides how the rows are stored: in one
    tensor per parameter, or as autograd left them. Statistics are computed once. Nothing returned may be written to.

    Attributes:
        tasks: N, the number of rows.
        names: of the blocks, in order; `("",)` for a Jacobian made from one tensor.
        device, dtype, requires_grad: of the rows; dtype is the narrowest among the blocks.
    """

    tasks: int
    names: tuple[str, ...]
    device: torch.device
    dtype: torch.dtype
    requires_grad: bool

    # -- what a subclass implements ----------------------------------------------------------------------------------

    @abstractmethod
    def compute_gramians(self) -> Tensor:
        """The Gramian of each block, float64 `[blocks, tasks, tasks]`. Read `block_gramians` instead."""

    @abstractmethod
    def compute_squared_norms(self) -> Tensor:
        """The squared norm of each row in each block, float64 `[blocks, tasks]`. Read `block_squared_norms` instead."""

    @abstractmethod
    def weighted_mean(self, weights: Tensor) -> Direction:
        """`1/N Σ_i weights_i · row_i` for weights `[tasks]`, in the dtype of the rows. Cost: one read of the rows."""

    @abstractmethod
    def materialize(self) -> dict[str, Tensor]:
        """The rows as tensors `[tasks, *shape]` by name, not to be written to."""

    @abstractmethod
    def row_like(self) -> Mapping[str, Tensor]:
        """Tensors `[*shape]` by name with shape, dtype and device of one row; their values mean nothing."""

    @abstractmethod
    def select(self, tasks: Sequence[int]) -> Jacobian:
        """The rows of some tasks."""

    @abstractmethod
    def detach(self) -> Jacobian:
        """The same rows outside the graph."""

    def compute_total_gramian(self) -> Tensor:
        """The sum of `block_gramians`, where that is not cheaper at once. Read `gramian()` instead."""
        return self.block_gramians[0] if len(self.names) == 1 else self.block_gramians.sum(0)

    def compute_total_squared_norms(self) -> Tensor:
        """The sum of `block_squared_norms`; overridden likewise. Read `squared_norms()` instead."""
        return self.block_squared_norms[0] if len(self.names) == 1 else self.block_squared_norms.sum(0)

    def finite_tasks(self) -> list[bool]:
        """For each row, whether it holds neither NaN nor infinity. Cost: one read of the rows."""
        return finite_rows(self.materialize().values())

    def mean(self) -> Direction:
        """The mean of the rows."""
        return self.weighted_mean(torch.ones(self.tasks, dtype=torch.float64))

    # -- statistics --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def block_gramians(self) -> Tensor:
        """The Gramian of each block, float64 `[blocks, tasks, tasks]`, computed at the first read."""
        return self.compute_gramians()

    @functools.cached_property
    def block_squared_norms(self) -> Tensor:
        """The squared norms in each block, float64 `[blocks, tasks]`; from the Gramians if they are known."""
        if "block_gramians" in self.__dict__:
            return self.block_gramians.diagonal(dim1=1, dim2=2)
        return self.compute_squared_norms()

    @functools.cached_property
    def total_gramian(self) -> Tensor:
        """The Gramian over all blocks, float64 `[tasks, tasks]`, computed at the first read."""
        return self.compute_total_gramian()

    @functools.cached_property
    def total_squared_norms(self) -> Tensor:
        """The squared norms over all blocks, float64 `[tasks]`; from the Gramian if it is known."""
        if "total_gramian" in self.__dict__:
            return self.total_gramian.diagonal()
        return self.compute_total_squared_norms()

    def gramian(self, parameters: str = "*") -> Tensor:
        """Inner products of the rows, G_ij = ⟨row_i, row_j⟩, float64 `[tasks, tasks]`.

        Args:
            parameters: a glob pattern; the inner product is taken over the blocks whose name matches.

        Rows of float32 and narrower are multiplied in float32 and added up in float64; where squares leave float32's
        range, in float64. Equivariant under a common factor of the rows from 1e-18 to 1e18. Differentiable.

        Raises:
            OptionError: the pattern matches no block.

        Cost: one read of the rows, N²/2 · params multiplications, at the first call; then none.
        """
        return self.total_gramian if parameters == "*" else self.block_gramians[self._matching(parameters)].sum(0)

    def squared_norms(self, parameters: str = "*") -> Tensor:
        """Squared Euclidean norms of the rows, float64 `[tasks]`; arguments, precision and errors as `gramian`."""
        if parameters == "*":
            return self.total_squared_norms
        return self.block_squared_norms[self._matching(parameters)].sum(0)

    def norms(self, parameters: str = "*") -> Tensor:
        """Euclidean norms of the rows, float64 `[tasks]`; the derivative at a zero row is zero."""
        return safe_sqrt(self.squared_norms(parameters))

    def _matching(self, parameters: str) -> list[int]:
        matching = [index for index, name in enumerate(self.names) if fnmatch.fnmatchcase(name, parameters)]
        if not matching:
            some = ", ".join(self.names[:6]) + (", …" if len(self.names) > 6 else "")
            raise OptionError(
                f"`parameters` must match the name of at least one tensor of the Jacobian; {parameters!r} matches none "
                f"of: {some or 'one unnamed tensor'}."
            )
        return matching

    # -- new Jacobians -----------------------------------------------------------------------------------------------

    def mix(self, mixing: Tensor) -> Jacobian:
        """C·J for a matrix `[tasks, tasks]`, or rows times weights `[tasks]`; lazy: no row is computed until needed."""
        return MixedJacobian(self, mixing)

    def map(self, function: Callable[[Tensor], Tensor]) -> Jacobian:
        """The function applied to each block `[tasks, *shape]`; it returns a block of the same shape."""
        return DenseJacobian({name: function(value) for name, value in self.materialize().items()})

    def replace(self, blocks: Mapping[str, Tensor]) -> Jacobian:
        """Other rows `[tasks, *shape]` under the same names."""
        return DenseJacobian({name: blocks[name] for name in self.names})

    def repeat(self, direction: Mapping[str, Tensor]) -> Jacobian:
        """N rows that are all equal to `direction`, a new tensor `[*shape]` for each name; in memory it is one row."""
        return RepeatedJacobian({name: direction[name] for name in self.names}, self.tasks)


@final
class DenseJacobian(Jacobian):
    """Rows in one tensor `[tasks, *shape]` for each parameter; never concatenated, never copied as a whole."""

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
        index = torch.as_tensor(list(tasks), device=self.device)
        return DenseJacobian({name: block[index] for name, block in self.blocks.items()})

    def detach(self) -> Jacobian:
        return DenseJacobian({name: block.detach() for name, block in self.blocks.items()})

    def compute_gramians(self) -> Tensor:
        return torch.stack(arithmetic.of_blocks(self.blocks.values(), arithmetic.gramian))

    def compute_squared_norms(self) -> Tensor:
        return torch.stack(arithmetic.of_blocks(self.blocks.values(), arithmetic.squared_norms))

    def compute_total_gramian(self) -> Tensor:
        gramians = arithmetic.of_blocks(self.blocks.values(), arithmetic.gramian)
        return gramians[0] if len(gramians) == 1 else torch.stack(gramians).sum(0)

    def compute_total_squared_norms(self) -> Tensor:
        squares = arithmetic.of_blocks(self.blocks.values(), arithmetic.squared_norms)
        return squares[0] if len(squares) == 1 else torch.stack(squares).sum(0)

    def weighted_mean(self, weights: Tensor) -> Direction:
        shares, mean = weights / self.tasks, {}
        for name, block in self.blocks.items():
            mean[name] = weighted_sum(block, shares)
        return mean


@final
class RepeatedJacobian(Jacobian):
    """N equal rows, of which one is in memory: the result of a method that replaces every row by its direction."""

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
    """C·J of another Jacobian J: its Gramian is C·G·Cᵀ, its mean one weighted mean of J.

    Attributes:
        source: J, which is no mixture itself.
        mixing: C, float64: weights `[tasks]` (a diagonal C) or a matrix `[tasks, tasks]`.
    """

    source: Jacobian
    mixing: Tensor

    def __init__(self, source: Jacobian, mixing: Tensor) -> None:
        if isinstance(source, MixedJacobian):
            self.source, self.mixing = source.source, matrix_product(mixing, source.mixing)
        else:
            self.source, self.mixing = source, mixing
        self.names, self.tasks, self.device = source.names, source.tasks, source.device
        self.dtype, self.requires_grad = source.dtype, source.requires_grad or mixing.requires_grad

    def weights(self) -> Tensor:
        """The factor of each row of J in N times the mean of the mixture: the column sums of C, `[tasks]`."""
        return self.mixing if self.mixing.dim() == 1 else self.mixing.sum(0)

    def materialize(self) -> dict[str, Tensor]:
        mixing = torch.diag(self.mixing) if self.mixing.dim() == 1 else self.mixing
        return {name: mixed(block, mixing) for name, block in self.source.materialize().items()}

    def row_like(self) -> Mapping[str, Tensor]:
        return self.source.row_like()

    def select(self, tasks: Sequence[int]) -> Jacobian:
        return DenseJacobian(self.materialize()).select(tasks)

    def detach(self) -> Jacobian:
        return MixedJacobian(self.source.detach(), self.mixing.detach())

    def compute_gramians(self) -> Tensor:
        return self._congruent(self.source.block_gramians)

    def compute_total_gramian(self) -> Tensor:
        return self._congruent(self.source.total_gramian)

    def compute_squared_norms(self) -> Tensor:
        if self.mixing.dim() == 1:  # norms are enough
            return self.source.block_squared_norms * self.mixing.square()
        return self.block_gramians.diagonal(dim1=1, dim2=2).clamp_min(0)

    def compute_total_squared_norms(self) -> Tensor:
        if self.mixing.dim() == 1:
            return self.source.total_squared_norms * self.mixing.square()
        return self.total_gramian.diagonal().clamp_min(0)

    def _congruent(self, gramian: Tensor) -> Tensor:
        """C·G·Cᵀ."""
        if self.mixing.dim() == 1:
            return self.mixing[:, None] * gramian * self.mixing
        return self.mixing @ gramian @ self.mixing.T

    def weighted_mean(self, weights: Tensor) -> Direction:
        return self.source.weighted_mean(weights * self.mixing if self.mixing.dim() == 1 else weights @ self.mixing)

    def mean(self) -> Direction:
        return self.source.weighted_mean(self.mixing if self.mixing.dim() == 1 else self.mixing.sum(0))
