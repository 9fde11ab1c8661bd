"""Gramians and norms of the rows of a Jacobian, computed on first access and cached."""

from __future__ import annotations

import fnmatch
import functools
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.rows.square_root import safe_sqrt


class RowStatistics(ABC):
    """Inner products of N rows that are split into named blocks, on the CPU. A subclass computes them from its rows.

    They have a graph if and only if the rows have one, even if gradients are disabled at the first access.

    Attributes:
        names: the names of the blocks, in order.
        requires_grad: True if the rows have a graph.
    """

    names: tuple[str, ...]
    requires_grad: bool

    @abstractmethod
    def compute_gramians(self) -> Tensor:
        """Compute the Gramian of each block, float64 `[blocks, tasks, tasks]`. Callers read `block_gramians`."""

    @abstractmethod
    def compute_squared_norms(self) -> Tensor:
        """Compute the squared norm of each row in each block, float64 `[blocks, tasks]`; see `block_squared_norms`."""

    def compute_total_gramian(self) -> Tensor:
        """Compute the sum of `block_gramians`; overridden if one product over all blocks is faster; see `gramian`."""
        return self.block_gramians[0] if len(self.names) == 1 else self.block_gramians.sum(0)

    def compute_total_squared_norms(self) -> Tensor:
        """Compute the sum of `block_squared_norms`; overridden likewise; see `squared_norms`."""
        return self.block_squared_norms[0] if len(self.names) == 1 else self.block_squared_norms.sum(0)

    @functools.cached_property
    def block_gramians(self) -> Tensor:
        """The Gramian of each block, float64 `[blocks, tasks, tasks]`."""
        with torch.set_grad_enabled(self.requires_grad):
            return self.compute_gramians()

    @functools.cached_property
    def block_squared_norms(self) -> Tensor:
        """The squared norms in each block, float64 `[blocks, tasks]`; from the Gramians if they are cached."""
        if "block_gramians" in self.__dict__:
            return self.block_gramians.diagonal(dim1=1, dim2=2)
        with torch.set_grad_enabled(self.requires_grad):
            return self.compute_squared_norms()

    @functools.cached_property
    def total_gramian(self) -> Tensor:
        """The Gramian over all blocks, float64 `[tasks, tasks]`."""
        with torch.set_grad_enabled(self.requires_grad):
            return self.compute_total_gramian()

    @functools.cached_property
    def total_squared_norms(self) -> Tensor:
        """The squared norms over all blocks, float64 `[tasks]`; from the Gramian if it is cached."""
        if "total_gramian" in self.__dict__:
            return self.total_gramian.diagonal()
        with torch.set_grad_enabled(self.requires_grad):
            return self.compute_total_squared_norms()

    def gramian(self, parameters: str = "*") -> Tensor:
        """Return the inner products of the rows, G_ij = ⟨row_i, row_j⟩, float64 `[tasks, tasks]`.

        Args:
            parameters: a glob pattern; the inner product is over the blocks whose name matches.

        Rows of float32 and narrower are multiplied in float32 and added up in float64; if squares exceed the range of
        float32, they are multiplied in float64. Equivariant under a common factor of the rows from 1e-18 to 1e18.
        Differentiable. The result is on the CPU for rows on any device: it is N² numbers, and reading one of them there
        would take as long as copying all.

        Raises:
            OptionError: the pattern matches no block.

        Cost: one read of the rows, N²/2 · params multiplications, at the first call; then none.
        """
        return self.total_gramian if parameters == "*" else self.block_gramians[self._matching(parameters)].sum(0)

    def squared_norms(self, parameters: str = "*") -> Tensor:
        """Return the squared Euclidean norms of the rows, float64 `[tasks]`; arguments and errors as in `gramian`."""
        if parameters == "*":
            return self.total_squared_norms
        return self.block_squared_norms[self._matching(parameters)].sum(0)

    def norms(self, parameters: str = "*") -> Tensor:
        """Return the Euclidean norms of the rows, float64 `[tasks]`; the derivative at a zero row is zero."""
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
