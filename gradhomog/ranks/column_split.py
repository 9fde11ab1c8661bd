"""Split the concatenation of parameters into equal ranges of columns, one for each rank that exchanges rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.ranks.communicator import GroupCommunicator
from gradhomog.rows import DenseRows, Direction, StoredRows


@dataclass(frozen=True)
class ColumnRange:
    """The columns of one rank in the concatenation of a group's parameters of one dtype, padded to K equal parts.

    Attributes:
        names, sizes: the parameters and their numbers of elements.
        width: the number of columns of each rank.
        start: the first column of this rank.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    width: int
    start: int


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
        self.like, self.ranks = like, ranks
        self.ranges: list[ColumnRange] = []
        for group in [list(like)] if groups is None else groups:
            for dtype in dict.fromkeys(like[name].dtype for name in group):
                names = tuple(name for name in group if like[name].dtype == dtype)
                sizes = tuple(like[name].numel() for name in names)
                width = max(-(-sum(sizes) // ranks), 1)  # parameters without elements have one column of padding
                self.ranges.append(ColumnRange(names, sizes, width, rank * width))

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
        matrices, found = columns.materialize(), dict[str, Tensor]()
        for part in self.ranges:
            if part.names[0] in matrices:
                offset = -part.start
                for name, size in zip(part.names, part.sizes, strict=True):
                    first, last = (min(max(place, 0), part.width) for place in (offset, offset + size))
                    found[name] = matrices[part.names[0]][:, first:last]
                    offset += size
        return DenseRows({name: found[name] for name in self.like if name in found})
