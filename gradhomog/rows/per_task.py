"""A Jacobian in the form that backward passes return: one tensor per task and parameter, never stacked as a whole."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from gradhomog.rows import arithmetic
from gradhomog.rows.arithmetic import CHUNK_COLUMNS, is_finite, row_sums
from gradhomog.rows.device_copies import to_cpu, to_device
from gradhomog.rows.jacobian import Direction, Jacobian
from gradhomog.rows.multi_tensor import group_small, join_rows, weighted_sums

# Columns that are stacked or added up at once: 16 float32 rows of this width fit into the cache of a core.
WIDTH = 2 * CHUNK_COLUMNS
CACHED = 8 * CHUNK_COLUMNS  # the width if rows are multiplied in pairs, for at most 8 rows
Product = Callable[[Sequence[Tensor] | Tensor, bool], Tensor]


@final
class PerTaskJacobian(Jacobian):
    """Rows in separate tensors: row i is `scale · gradients[name][i]` over all names; None is a zero gradient.

    Args:
        gradients: for each parameter one gradient per task.
        like: for each parameter a tensor of its shape, dtype and device.
        scale: common factor of all rows; applied to results, not to the rows.

    Small parameters are copied into matrices, and multiplied and summed together (`multi_tensor.group_small`). No other
    copy has more than `WIDTH` columns, unless the rows are materialized.
    """

    def __init__(
        self, gradients: Mapping[str, Sequence[Tensor | None]], like: Mapping[str, Tensor], scale: float = 1.0
    ) -> None:
        self._gradients, self._like, self._scale = gradients, like, scale
        self.names = tuple(like)
        self.tasks = len(next(iter(gradients.values())))
        first = next(iter(like.values()))
        self.device = first.device
        self.dtype = min((value.dtype for value in like.values()), key=lambda dtype: dtype.itemsize)
        self.requires_grad = any(part is not None and part.requires_grad for row in gradients.values() for part in row)

    def materialize(self) -> dict[str, Tensor]:
        found = {
            name: torch.stack([torch.zeros_like(like) if part is None else part for part in self._gradients[name]])
            for name, like in self._like.items()
        }
        return found if self._scale == 1 else {name: self._scale * rows for name, rows in found.items()}

    def row(self, task: int) -> Direction:
        parts = {name: parts[task] for name, parts in self._gradients.items()}
        row = {name: torch.zeros_like(self._like[name]) if part is None else part for name, part in parts.items()}
        return row if self._scale == 1 else {name: self._scale * part for name, part in row.items()}

    def row_like(self) -> Mapping[str, Tensor]:
        return self._like

    def select(self, tasks: Sequence[int]) -> PerTaskJacobian:
        return self._with_gradients({name: [parts[task] for task in tasks] for name, parts in self._gradients.items()})

    def select_parameters(self, names: Sequence[str]) -> PerTaskJacobian:
        return self._with_gradients({name: self._gradients[name] for name in names})

    def detach(self) -> PerTaskJacobian:
        detached = {
            name: [None if part is None else part.detach() for part in parts] for name, parts in self._gradients.items()
        }
        return self._with_gradients(detached)

    def _with_gradients(self, gradients: Mapping[str, Sequence[Tensor | None]]) -> PerTaskJacobian:
        return PerTaskJacobian(gradients, {name: self._like[name] for name in gradients}, self._scale)

    @functools.cached_property
    def _groups(self) -> list[_Group]:
        """Parameters that are multiplied and summed together."""
        names = [[name] for name in self.names] if self.requires_grad else group_small(self._like, self.tasks)
        return [self._group(members) for members in names]

    def _group(self, names: list[str]) -> _Group:
        gradients, like = [self._gradients[name] for name in names], [self._like[name] for name in names]
        if len(names) > 1:
            return _Group(names, list(range(self.tasks)), join_rows(gradients, like))
        rows = [(task, _flat(part, like[0])) for task, part in enumerate(gradients[0]) if part is not None]
        return _Group(names, [task for task, _ in rows], [part for _, part in rows])

    def compute_gramians(self) -> Tensor:
        return self._scale**2 * self._products([self._group([name]) for name in self.names], _gramian, 2)

    def compute_total_gramian(self) -> Tensor:
        return self._scale**2 * self._products(self._groups, _gramian, 2).sum(0)

    def compute_squared_norms(self) -> Tensor:
        return self._scale**2 * self._products([self._group([name]) for name in self.names], _squared_norms, 1)

    def compute_total_squared_norms(self) -> Tensor:
        return self._scale**2 * self._products(self._groups, _squared_norms, 1).sum(0)

    def finite_tasks(self) -> list[bool]:
        groups = [group for group in self._groups if len(group.rows)]
        sums = [torch.cat([row_sums(row.detach()[None]) for row in group.rows]).double() for group in groups]
        totals = torch.zeros(self.tasks, dtype=torch.float64)
        for group, part in zip(groups, to_cpu(sums), strict=True):
            totals[group.tasks] += part
        return [
            math.isfinite(total) or all(is_finite(part) for part in self.row(task).values())
            for task, total in enumerate(totals.tolist())
        ]

    def weighted_mean(self, weights: Tensor) -> Direction:
        shares = weights.double() * (self._scale / self.tasks)
        found: Direction = {}
        alone: list[str] = []
        shares_on_device = to_device(shares, self.device)
        for group in self._groups:
            if weights.requires_grad or not isinstance(group.rows, Tensor):
                alone += group.names
                continue
            like = [self._like[name] for name in group.names]
            parts = torch.split(
                arithmetic.weighted_sum(group.rows, shares_on_device), [value.numel() for value in like]
            )
            found.update((n, part.view_as(one)) for n, part, one in zip(group.names, parts, like, strict=True))
        together = [] if weights.requires_grad else [name for name in alone if self._is_fused(name)]
        if together:
            rows: Any = zip(*(self._gradients[name] for name in together), strict=True)
            found.update(zip(together, weighted_sums(list(rows), shares.tolist()), strict=True))
        return {
            name: found[name] if name in found else _weighted_sum(self._gradients[name], shares, like)
            for name, like in self._like.items()
        }

    def _is_fused(self, name: str) -> bool:
        """True if multi-tensor operations sum the rows of a parameter; on a CPU parts that fit the cache are faster."""
        like = self._like[name]
        return like.device.type != "cpu" and like.dtype.itemsize >= 4 and all(
            part is not None and part.dtype == like.dtype and part.stride() == like.stride() and not part.requires_grad
            for part in self._gradients[name]
        )  # fmt: skip

    def _products(self, groups: Sequence[_Group], product: Product, dims: int) -> Tensor:
        """Return a product of the rows of each group, `[groups, tasks]` or, for `dims` 2, `[groups, tasks, tasks]`.

        It is zero for a task without a gradient. The result is on the CPU; transfers as in `block_products`.
        """
        zeros = torch.zeros([self.tasks] * dims, dtype=torch.float64)
        products = iter(to_cpu([product(group.rows, False) for group in groups if len(group.rows)]))
        fast = [next(products) if len(group.rows) else zeros for group in groups]
        squares = [part.diagonal() if dims == 2 else part for part in fast]
        sizes = [group.rows[0] if len(group.rows) else zeros[:0] for group in groups]
        if unsafe := arithmetic.outside_float32_range(squares, sizes):
            again = _require_float64(groups, unsafe)
            for index, exact in zip(again, to_cpu([product(groups[index].rows, True) for index in again]), strict=True):
                fast[index] = exact
        placed = [
            part if len(group.tasks) == self.tasks or not group.tasks else _scatter(part, group.tasks, zeros)
            for part, group in zip(fast, groups, strict=True)
        ]
        return torch.stack(placed)


@dataclass(frozen=True)
class _Group:
    """The rows of some parameters.

    Attributes:
        tasks: those that have a gradient.
        rows: for each of these tasks a vector; a matrix if the group has several parameters.
    """

    names: list[str]
    tasks: list[int]
    rows: Sequence[Tensor] | Tensor


def _require_float64(groups: Sequence[_Group], indices: Sequence[int]) -> list[int]:
    """Return the indices of those groups of which a row requires products in float64; one transfer."""
    owners = [index for index in indices for _ in groups[index].rows]
    needed = arithmetic.require_float64([row[None] for index in indices for row in groups[index].rows])
    return sorted({index for index, wide in zip(owners, needed, strict=True) if wide})


def jacobian_of_rows(rows: Sequence[Mapping[str, Tensor]]) -> Jacobian:
    """Return the Jacobian of rows in separate tensors `[*shape]` by name, without a copy; all rows have equal shapes.

    >>> jacobian_of_rows([{"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([1.0, 0.0])}]).gramian()
    tensor([[25.,  3.],
            [ 3.,  1.]], dtype=torch.float64)
    """
    return PerTaskJacobian({name: [row[name] for row in rows] for name in rows[0]}, rows[0])


def _scatter(part: Tensor, present: list[int], zeros: Tensor) -> Tensor:
    """Scatter a product of some tasks' rows into zeros."""
    index = torch.tensor(present)
    return zeros.index_put((index[:, None], index) if zeros.dim() == 2 else (index,), part)


def _gramian(rows: Sequence[Tensor] | Tensor, exact: bool) -> Tensor:
    """Return the inner products of rows in a matrix or in separate tensors, float64 `[len(rows), len(rows)]`."""
    if isinstance(rows, Tensor):
        return arithmetic.gramian(rows, exact)
    if len(rows) > 8 or not _pairwise_is_faster(rows, exact):
        chunks = [arithmetic.gramian(chunk, exact) for chunk in _stack_chunks(rows)]
        return chunks[0] if len(chunks) == 1 else torch.stack(chunks).sum(0)
    pairs = torch.tril_indices(len(rows), len(rows))
    places = list(zip(*pairs.tolist(), strict=True))
    sums = [torch.stack([torch.dot(chunk[i], chunk[j]) for i, j in places]).double() for chunk in _chunks(rows, CACHED)]
    lower = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    lower[pairs[0], pairs[1]] = sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)
    return lower + lower.tril(-1).T


def _squared_norms(rows: Sequence[Tensor] | Tensor, exact: bool) -> Tensor:
    """Return the sums of squares of rows in a matrix or in separate tensors, float64 `[len(rows)]`."""
    if isinstance(rows, Tensor):
        return arithmetic.squared_norms(rows, exact)
    if not _pairwise_is_faster(rows, exact):
        chunks = [arithmetic.squared_norms(chunk, exact) for chunk in _stack_chunks(rows)]
        return chunks[0] if len(chunks) == 1 else torch.stack(chunks).sum(0)
    sums = [torch.stack([torch.dot(row, row) for row in chunk]).double() for chunk in _chunks(rows, CACHED)]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)


def _pairwise_is_faster(rows: Sequence[Tensor], exact: bool) -> bool:
    """True if dot products of pairs are faster than stacking chunks (measured, up to 8 rows)."""
    some = rows[0]
    plain = not exact and not any(row.requires_grad for row in rows)
    return plain and some.device.type == "cpu" and some.dtype == torch.float32 and some.numel() > WIDTH


def _chunks(rows: Sequence[Tensor], width: int) -> Iterator[list[Tensor]]:
    for start in range(0, rows[0].numel(), width):
        yield [row[start : start + width] for row in rows]


def _stack_chunks(rows: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield matrices `[len(rows), ≤ WIDTH]`, at least one, also for empty rows."""
    width = WIDTH if rows[0].device.type == "cpu" else rows[0].numel()
    yield from (torch.stack(chunk) for chunk in _chunks(rows, max(width, 1)))
    if rows[0].numel() == 0:
        yield torch.stack(list(rows))


def _weighted_sum(parts: Sequence[Tensor | None], shares: Tensor, like: Tensor) -> Tensor:
    """Return `Σ_i shares_i · parts_i` in the dtype of `like`; float16 and bfloat16 are summed in float32."""
    present = [(task, part) for task, part in enumerate(parts) if part is not None]
    if not present:
        return torch.zeros_like(like, requires_grad=False)
    dtype = like.dtype if like.dtype.itemsize >= 4 else torch.float32
    if shares.requires_grad or any(part.requires_grad for _, part in present):
        scaled = to_device(shares, like.device, dtype)
        return torch.stack([scaled[task] * part.to(dtype) for task, part in present]).sum(0).to(like.dtype)
    factors: list[float] = shares.tolist()
    order = _memory_order(like)  # the sum has the memory order of `like`, without gaps
    total = torch.empty([like.shape[axis] for axis in order], dtype=dtype, device=like.device)
    whole, (first, *rest) = total.view(-1), [(task, _flat(part, like)) for task, part in present]
    width = WIDTH if like.device.type == "cpu" else like.numel()
    for start in range(0, like.numel(), max(width, 1)):
        # The sum of one chunk stays in the cache, and is written to memory once for all rows.
        chunk = whole[start : start + width]
        torch.mul(first[1][start : start + width].to(dtype), factors[first[0]], out=chunk)
        for task, row in rest:
            chunk.add_(row[start : start + width].to(dtype), alpha=factors[task])
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return total.permute(inverse).to(like.dtype)


def _memory_order(like: Tensor) -> list[int]:
    """Return the axes of a tensor from the outermost in memory to the innermost."""
    return sorted(range(like.dim()), key=lambda axis: (like.stride(axis), like.shape[axis]), reverse=True)


def _flat(part: Tensor, like: Tensor) -> Tensor:
    """Return all elements of a tensor in the memory order of `like`; a view if both have the same memory order."""
    return part.reshape(-1) if like.is_contiguous() else part.permute(_memory_order(like)).reshape(-1)
