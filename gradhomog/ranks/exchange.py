"""Rows whose columns are split over ranks: the split, the exchange, and statistics that are summed over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from gradhomog.ranks.communicator import GroupCommunicator, Pending
from gradhomog.ranks.dtensors import as_dtensor, local_part
from gradhomog.rows import DenseRows, Direction, Jacobian, StoredRows, all_finite
from gradhomog.rows.arithmetic import Product

Row = Callable[[int], Direction]
"""Returns one row of this rank, by parameter name."""

PartialRow = tuple[Mapping[str, Tensor | None], float]
"""The gradient of one task on this rank, None for zero, and its weight in the sum over the ranks."""


class ColumnRange(NamedTuple):
    """The columns of one rank in the concatenation of a group's parameters of one dtype, padded to K equal parts.

    Attributes:
        names, sizes: the parameters and their numbers of elements.
        width: the number of columns of each rank.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    width: int


class ColumnSplit:
    """The columns of one of K ranks; a group's parameters of one dtype are concatenated, and exchanged together.

    Args:
        like: tensors with the shapes, dtypes and devices of one row.
        groups: the names of the parameters that are homogenized together; None for one group of all.

    Attributes:
        ranges: the columns of this rank for each group and dtype.
    """

    def __init__(
        self, like: Mapping[str, Tensor], ranks: int, rank: int, groups: Iterable[Sequence[str]] | None = None
    ) -> None:
        self.like, self.ranks, self.rank = like, ranks, rank
        self.ranges: list[ColumnRange] = []
        for group in [list(like)] if groups is None else groups:
            for dtype in dict.fromkeys(like[name].dtype for name in group):
                names = tuple(name for name in group if like[name].dtype == dtype)
                sizes = tuple(like[name].numel() for name in names)
                width = max(-(-sum(sizes) // ranks), 1)  # parameters without elements have one column of padding
                self.ranges.append(ColumnRange(names, sizes, width))

    def flatten(self, part: ColumnRange, row: Mapping[str, Tensor | None]) -> Tensor:
        """Return a row as a vector `[ranks · width]` of one dtype, padded with zeros; None and absent names are 0."""
        like = self.like[part.names[0]]
        values = [row.get(name) for name in part.names]
        blocks = [
            like.new_zeros(size) if value is None else value.to(like.dtype).reshape(-1)
            for value, size in zip(values, part.sizes, strict=True)
        ]
        padding = like.new_zeros(self.ranks * part.width - sum(part.sizes), requires_grad=False)
        return torch.cat([*blocks, padding])

    def gather(self, vectors: Mapping[str, Tensor], communicator: GroupCommunicator) -> Direction:
        """Return one row from the columns of all ranks: for some of `ranges`, by first name, those of this rank."""
        return self.unflatten({name: communicator.all_gather(vector) for name, vector in vectors.items()})

    def unflatten(self, vectors: Mapping[str, Tensor]) -> Direction:
        """Return one row, in the order of the parameters, from vectors for some of `ranges`, by first name."""
        found: Direction = {}
        for part in self.ranges:
            if part.names[0] in vectors:
                flat = vectors[part.names[0]][: sum(part.sizes)]
                found.update(zip(part.names, torch.split(flat, list(part.sizes)), strict=True))
        return {name: found[name].view(like.shape) for name, like in self.like.items() if name in found}

    def by_name(self, columns: StoredRows) -> StoredRows:
        """Return the columns of this rank, which have a block for some of `ranges`, with one for each parameter."""
        matrices, found = dict(columns.by_parameter()), dict[str, Tensor]()
        for part in self.ranges:
            if part.names[0] in matrices:
                offset = -self.rank * part.width
                for name, size in zip(part.names, part.sizes, strict=True):
                    first, last = (min(max(place, 0), part.width) for place in (offset, offset + size))
                    found[name] = matrices[part.names[0]][:, first:last]
                    offset += size
        return DenseRows({name: found[name] for name in self.like if name in found})


def _identity(value: Any) -> Any:
    return value


@final
@dataclass(eq=False)
class SplitRows(StoredRows):
    """N rows, of which each rank stores some columns; norms, Gramians and the check for finite rows are summed.

    Every method must be called on all ranks in the same order, because most exchange something: total norms and
    Gramians N or N² numbers, and as many for each parameter if they are not summed.

    Attributes:
        columns: the columns of this rank, in some blocks.
        like: a tensor `[*shape]` for each parameter name.
        communicator: the ranks over which statistics are summed.
        replicas: the number of ranks that store the same columns.
        to_direction, to_row: return a direction or a row from the part of it that this rank has computed.
        by_name: returns the columns with one block for each parameter.
        whole: True if `to_direction` returns the same tensors on all ranks.
    """

    columns: StoredRows
    like: Mapping[str, Tensor]
    communicator: GroupCommunicator
    replicas: int = 1
    to_direction: Callable[[Direction], Direction] = _identity
    to_row: Callable[[Direction], Direction] = _identity
    by_name: Callable[[StoredRows], StoredRows] = _identity
    whole: bool = False

    def __post_init__(self) -> None:
        self.tasks, self.requires_grad = self.columns.tasks, False

    def row(self, task: int) -> Direction:
        return self.to_row(self.columns.row(task))

    def select(self, tasks: Sequence[int]) -> SplitRows:
        return replace(self, columns=self.columns.select(tasks))

    def select_parameters(self, names: Sequence[str]) -> SplitRows:
        """Return the blocks of some parameters; of exchanged rows one of the groups. Nothing is sent."""
        columns = self.columns.select_parameters([name for name in self.columns.like if name in names])
        return replace(self, columns=columns, like={name: self.like[name] for name in names})

    def detach(self) -> SplitRows:
        return self

    def finite_tasks(self) -> list[bool]:
        nonfinite = [float(not finite) for finite in self.columns.finite_tasks()]
        return [count == 0 for count in self.communicator.all_gather_numbers(nonfinite).sum(0).tolist()]

    def products(self, product: Product, by_block: bool) -> Tensor:
        columns = self.by_name(self.columns) if by_block else self.columns
        return self.communicator.sum_on_cpu(columns.products(product, by_block) / self.replicas)

    def weighted_sum(self, weights: Tensor, divisor: float = 1) -> Direction:
        return self.to_direction(self.columns.weighted_sum(weights.detach(), divisor))

    def all_finite(self, tensors: Iterable[Tensor]) -> bool:
        finite = all_finite(map(local_part, tensors))
        return finite if self.whole else bool(self.communicator.all_gather_numbers([float(finite)]).all())


def exchanged_rows(columns: Mapping[str, Tensor], split: ColumnSplit, communicator: GroupCommunicator) -> SplitRows:
    """Return rows that were exchanged: each of K ranks received one range of columns; directions are gathered.

    `weighted_sum` exchanges one row, `by_parameter` all rows.

    Args:
        columns: for each of `split.ranges`, by its first name, the columns of this rank, `[tasks, width]`.
    """
    gather = partial(split.gather, communicator=communicator)
    return SplitRows(
        DenseRows(columns), split.like, communicator,
        to_direction=gather, to_row=gather, by_name=split.by_name, whole=True,
    )  # fmt: skip


def sharded_rows(
    columns: StoredRows, parameters: Mapping[str, Tensor], replicas: int, communicator: GroupCommunicator
) -> SplitRows:
    """Return rows of DTensor parameters, of which the hooks of `fully_shard` (FSDP2) give each rank its part.

    A direction is returned as DTensors, of which each rank keeps its part; `by_parameter` and `row` send all or one of
    the rows to every rank.

    Args:
        columns: the parts of this rank, by parameter name.
        parameters: the DTensors.
        replicas: the number of ranks that store the same elements.
    """
    scalars = {name: local_part(one).new_empty((), requires_grad=False) for name, one in parameters.items()}
    like = {name: one.expand(parameters[name].shape) for name, one in scalars.items()}  # without memory

    def to_direction(parts: Direction) -> Direction:
        return {name: as_dtensor(part, parameters[name]) for name, part in parts.items()}

    def to_row(parts: Direction) -> Direction:
        tensors: dict[str, Any] = {**to_direction(parts)}
        return {name: tensor.full_tensor() for name, tensor in tensors.items()}

    return SplitRows(columns, like, communicator, replicas, to_direction, to_row)


def collect_tasks(row: Row, counts: Sequence[int], split: ColumnSplit, communicator: GroupCommunicator) -> Jacobian:
    """Return the rows of all ranks, in the order of the ranks.

    Args:
        row: called with 0, …, n − 1 for the n tasks of this rank.
        counts: the number of tasks of each rank.

    Cost: each rank sends n rows less its own part; memory: a copy of its rows, and N rows over K.
    """
    rows = [row(task) for task in range(counts[communicator.rank])]
    columns = {}
    for part in split.ranges:
        flat = torch.stack([split.flatten(part, one) for one in rows])
        sent = flat.view(len(rows), communicator.size, part.width).transpose(0, 1).reshape(-1)
        received = communicator.all_to_all(sent, [count * part.width for count in counts])
        columns[part.names[0]] = received.view(sum(counts), part.width)
    return Jacobian(exchanged_rows(columns, split, communicator))


def sum_tensors(
    tensors: Mapping[str, Tensor | None], like: Mapping[str, Tensor], communicator: GroupCommunicator
) -> Direction:
    """Return the sums of tensors over the ranks, by name; tensors of one dtype are sent together.

    Args:
        tensors: None for zero.
        like: for each name a tensor of the same shape, dtype and device.
    """
    if not like:
        return {}
    whole = ColumnSplit(like, 1, 0)
    return whole.unflatten({p.names[0]: communicator.sum(whole.flatten(p, tensors)) for p in whole.ranges})


def average(
    tensors: Mapping[str, Tensor | None], like: Mapping[str, Tensor], communicator: GroupCommunicator
) -> Direction:
    """Return the means of tensors over the ranks, by name; arguments as in `sum_tensors`."""
    return {name: total / communicator.size for name, total in sum_tensors(tensors, like, communicator).items()}


def sum_batches(rows: Iterable[PartialRow | None], split: ColumnSplit, communicator: GroupCommunicator) -> SplitRows:
    """Return the rows Σ_r w_ri J_ri, from the row and the weight of each task on this rank; None for a zero row.

    Each row is sent while the next one is computed, if `rows` computes it on demand.

    Cost: each rank sends N rows less its own parts; memory: two rows, and N rows over K.
    """
    columns: list[list[Tensor]] = [[] for _ in split.ranges]
    sending: list[Pending] = []
    for entry in rows:
        row, weight = entry or ({}, 1.0)
        started = [communicator.start_reduce_scatter(split.flatten(part, row).mul_(weight)) for part in split.ranges]
        _receive(sending, columns)
        sending = started
    _receive(sending, columns)
    stacked = {part.names[0]: torch.stack(parts) for part, parts in zip(split.ranges, columns, strict=True)}
    return exchanged_rows(stacked, split, communicator)


def _receive(sending: Sequence[Pending], columns: Sequence[list[Tensor]]) -> None:
    for parts, pending in zip(columns, sending, strict=False):
        parts.append(pending.wait())
