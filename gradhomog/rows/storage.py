"""The storage of a Jacobian's rows: its interface, rows computed on demand, and rows in one tensor per name."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from gradhomog.errors import NonfiniteError
from gradhomog.rows import arithmetic

Direction = dict[str, Tensor]
"""A direction or one row: a tensor `[*shape]` for each parameter name."""


class Rows(ABC):
    """N rows, split into blocks by parameter name; they may be computed when they are first required.

    Attributes:
        like: a tensor for each name, with the dtype and device of the rows.
        tasks: N.
        requires_grad: True if the rows have a graph.
        computed: True if the rows are in memory.
    """

    like: Mapping[str, Tensor]
    tasks: int
    requires_grad: bool
    computed: bool = True

    @abstractmethod
    def stored(self) -> StoredRows:
        """Return the rows in memory."""

    @abstractmethod
    def products(self, product: arithmetic.Product, by_block: bool) -> Tensor:
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
    all_finite = staticmethod(arithmetic.all_finite)


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

    def by_parameter(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each name with its rows `[tasks, *shape]`; do not modify them in place."""
        rows = [self.row(task) for task in range(self.tasks)]
        for name in self.like:
            yield name, torch.stack([row[name] for row in rows])


class LazyRows(Rows):
    """Rows of losses, computed on demand.

    A pipeline that reads neither norms, inner products nor rows (weights from losses, or from features) reads only the
    weighted mean at its end, by one backward pass instead of N.

    Attributes:
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

    def products(self, product: arithmetic.Product, by_block: bool) -> Tensor:
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

    def by_parameter(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.blocks.items())

    def row_like(self) -> Mapping[str, Tensor]:
        return self.row(0)

    def select(self, tasks: Sequence[int]) -> DenseRows:
        index = arithmetic.task_index(tasks, self._device)
        return DenseRows({name: block[index] for name, block in self.blocks.items()})

    def select_parameters(self, names: Sequence[str]) -> DenseRows:
        return DenseRows({name: self.blocks[name] for name in names})

    def detach(self) -> DenseRows:
        return DenseRows({name: block.detach() for name, block in self.blocks.items()})

    def finite_tasks(self) -> list[bool]:
        sums = [arithmetic.row_sums(arithmetic.as_matrix(block.detach())).double() for block in self.blocks.values()]
        return arithmetic.finite_rows(torch.stack(sums).sum(0), self.row)

    def products(self, product: arithmetic.Product, by_block: bool) -> Tensor:
        matrices = []
        for block in self.blocks.values():
            matrices.append(block if block.dim() == 2 else arithmetic.as_matrix(block))
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
            shares = arithmetic.to_device(shares, self._device)  # one copy for all blocks
        # A matrix also for one sum: `matmul` of a vector and one column returns a scalar in some dispatch modes.
        sums = shares if shares.dim() == 2 else shares[None]
        for name, block in self.blocks.items():
            matrix = block if block.dim() == 2 else arithmetic.as_matrix(block)
            if block.dtype.itemsize < 4:
                scaled = sums.to(torch.float32)
                parts = [torch.mm(scaled, part.float()).to(block.dtype) for part in arithmetic.column_chunks(matrix)]
                total = torch.cat(parts, dim=1)
            else:
                total = torch.mm(sums.to(block.dtype), matrix)  # block.mean(0) takes up to twice as long
            total = total if sums is shares else total[0]
            found[name] = total if block.dim() == 2 else total.view((*shares.shape[:-1], *block.shape[1:]))
        return found


SMALL_COPY = 2**20
"""The largest number of elements that are copied into one matrix: 4 MB in float32, which take a millisecond."""


@dataclass(frozen=True)
class _Group:
    """The rows of some parameters.

    Attributes:
        tasks: those that have a gradient.
        rows: for each of these tasks a vector; a matrix if the group has several parameters.
    """

    names: list[str]
    tasks: list[int]
    rows: arithmetic.Vectors


@final
class PerTaskRows(StoredRows):
    """Rows in separate tensors: row i is `scale · gradients[name][i]` over all names; None is a zero gradient.

    Args:
        gradients: for each parameter one gradient per task.
        like: for each parameter a tensor of its shape, dtype and device.
        scale: common factor of all rows; applied to results, not to the rows.

    Small parameters are copied into matrices, and multiplied and summed together (`group_small`). Others are copied by
    `stack_chunks`, unless `by_parameter` copies them.
    """

    def __init__(
        self, gradients: Mapping[str, Sequence[Tensor | None]], like: Mapping[str, Tensor], scale: float = 1.0
    ) -> None:
        self._gradients, self.like, self._scale = gradients, like, scale
        self.tasks, self._device = len(next(iter(gradients.values()))), next(iter(like.values())).device
        self.requires_grad = any(part is not None and part.requires_grad for row in gradients.values() for part in row)

    def row(self, task: int) -> Direction:
        parts = {name: parts[task] for name, parts in self._gradients.items()}
        row = {name: torch.zeros_like(self.like[name]) if part is None else part for name, part in parts.items()}
        return row if self._scale == 1 else {name: self._scale * part for name, part in row.items()}

    def select(self, tasks: Sequence[int]) -> PerTaskRows:
        return self._with_gradients({name: [parts[task] for task in tasks] for name, parts in self._gradients.items()})

    def select_parameters(self, names: Sequence[str]) -> PerTaskRows:
        return self._with_gradients({name: self._gradients[name] for name in names})

    def detach(self) -> PerTaskRows:
        detached = {
            name: [None if part is None else part.detach() for part in parts] for name, parts in self._gradients.items()
        }
        return self._with_gradients(detached)

    def finite_tasks(self) -> list[bool]:
        groups = [group for group in self._groups if len(group.rows)]
        sums = [torch.cat([arithmetic.row_sums(row.detach()[None]) for row in group.rows]).double() for group in groups]
        totals = torch.zeros(self.tasks, dtype=torch.float64)
        for group, part in zip(groups, arithmetic.to_cpu(sums), strict=True):
            totals[group.tasks] += part
        return arithmetic.finite_rows(totals, self.row)

    def products(self, product: arithmetic.Product, by_block: bool) -> Tensor:
        """See the base class; the products of a task without a gradient are zero."""
        groups = [self._group([name]) for name in self.like] if by_block else self._groups
        dims = 1 if product is arithmetic.squared_norms else 2
        zeros = torch.zeros([self.tasks] * dims, dtype=torch.float64)
        placed = [zeros] * len(groups)
        some = [index for index, group in enumerate(groups) if len(group.rows)]
        for index, part in zip(some, arithmetic.products([groups[i].rows for i in some], product), strict=True):
            tasks = groups[index].tasks
            if len(tasks) < self.tasks:
                places = torch.tensor(tasks)
                part = zeros.index_put((places[:, None], places)[-dims:], part)
            placed[index] = part
        found = torch.stack(placed)
        return self._scale**2 * (found if by_block else found.sum(0))

    def weighted_sum(self, weights: Tensor, divisor: float = 1) -> Direction:
        shares, found = weights * (self._scale / divisor), Direction()
        for group in self._groups:
            like = [self.like[name] for name in group.names]
            if isinstance(group.rows, Tensor):  # a few megabytes at most
                total = DenseRows({"": group.rows}).weighted_sum(shares)[""]
                parts = zip(group.names, torch.split(total, [one.numel() for one in like]), like, strict=True)
                found.update((name, part.view_as(one)) for name, part, one in parts)
            else:
                some = shares if len(group.tasks) == self.tasks else shares[group.tasks]
                found[group.names[0]] = _sum_vectors(group.rows, some, like[0])
        return {name: found[name] for name in self.like}

    def _with_gradients(self, gradients: Mapping[str, Sequence[Tensor | None]]) -> PerTaskRows:
        return PerTaskRows(gradients, {name: self.like[name] for name in gradients}, self._scale)

    @functools.cached_property
    def _groups(self) -> list[_Group]:
        """Parameters that are multiplied and summed together."""
        names = [[name] for name in self.like] if self.requires_grad else group_small(self.like, self.tasks)
        return [self._group(members) for members in names]

    def _group(self, names: list[str]) -> _Group:
        gradients, like = [self._gradients[name] for name in names], [self.like[name] for name in names]
        if len(names) > 1:
            parts = [
                torch.zeros_like(shape, requires_grad=False).view(-1) if part is None else part.reshape(-1)
                for row in zip(*gradients, strict=True)
                for part, shape in zip(row, like, strict=True)
            ]
            return _Group(names, list(range(self.tasks)), torch.cat(parts).view(self.tasks, -1))
        tasks = [task for task, part in enumerate(gradients[0]) if part is not None]
        present = [part for part in gradients[0] if part is not None]
        if not like[0].is_contiguous():  # in its memory order: a view if a gradient has the same
            present = [part.permute(_memory_order(like[0])) for part in present]
        return _Group(names, tasks, [part.reshape(-1) for part in present])


def group_small(like: Mapping[str, Tensor], tasks: int) -> list[list[str]]:
    """Split parameters into groups whose rows are copied into one matrix, and single ones whose rows are not.

    For a small tensor, starting an operation takes longer than the operation. All parameters of a small network are in
    one group; otherwise those with at most `SMALL_TENSOR` elements, and each of the others is alone.
    """
    whole = tasks * sum(map(torch.numel, like.values())) <= SMALL_COPY
    groups: list[list[str]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[list[str], int]] = {}
    for name, tensor in like.items():
        size, kind = tasks * tensor.numel(), (tensor.dtype, tensor.device)
        if not tensor.is_contiguous() or not (whole or tensor.numel() <= arithmetic.SMALL_TENSOR):
            groups.append([name])
            continue
        names, filled = filling.get(kind, ([], 0))
        if not names or filled + size > SMALL_COPY:
            names, filled = [], 0
            groups.append(names)
        names.append(name)
        filling[kind] = (names, filled + size)
    return groups


def _sum_vectors(rows: Sequence[Tensor], shares: Tensor, like: Tensor) -> Tensor:
    """Return `Σ_i shares_i · rows_i` with shape, memory order and dtype of `like`; half precision in float32.

    The rows are vectors in the memory order of `like`. They are added up one by one, because copied into a matrix and
    multiplied they take two to three times as long.
    """
    if not rows:
        return torch.zeros_like(like, requires_grad=False)
    if like.dtype.itemsize < 4 or shares.requires_grad or any(row.requires_grad for row in rows):
        chunks = [DenseRows({"": chunk}).weighted_sum(shares)[""] for chunk in arithmetic.stack_chunks(rows)]
        whole = torch.cat(chunks)
    else:
        first, *others = shares.tolist()
        whole = rows[0] * first
        for row, share in zip(rows[1:], others, strict=True):
            whole.add_(row, alpha=share)
    # Dense, in the memory order of `like`, which may have gaps.
    return whole.as_strided(like.shape, torch.empty_like(like, device="meta").stride())


def _memory_order(like: Tensor) -> list[int]:
    """Return the axes of a tensor from the outermost in memory to the innermost."""
    return sorted(range(like.dim()), key=lambda axis: (like.stride(axis), like.shape[axis]), reverse=True)
