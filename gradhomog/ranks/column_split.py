"""Split the concatenation of parameters into equal ranges of columns, one for each rank that exchanges rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradhomog.rows import Direction


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

    def columns(self) -> Iterator[tuple[str, int, int]]:
        """Yield each parameter with the range of its elements among the columns of this rank; it may be empty."""
        offset = -self.start
        for name, size in zip(self.names, self.sizes, strict=True):
            yield name, min(max(offset, 0), self.width), min(max(offset + size, 0), self.width)
            offset += size


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
        self.like, self.ranks, self._rank = like, ranks, rank
        self.ranges: list[ColumnRange] = []
        for group in [list(like)] if groups is None else groups:
            for dtype in dict.fromkeys(like[name].dtype for name in group):
                names = tuple(name for name in group if like[name].dtype == dtype)
                sizes = tuple(like[name].numel() for name in names)
                width = max(-(-sum(sizes) // ranks), 1)  # parameters without elements have one column of padding
                self.ranges.append(ColumnRange(names, sizes, width, rank * width))

    def select(self, group: Sequence[str]) -> ColumnSplit:
        """Return the split of one of the groups, whose ranges are among those of this split."""
        return ColumnSplit({name: self.like[name] for name in group}, self.ranks, self._rank)

    def flatten(self, part: ColumnRange, row: Mapping[str, Tensor | None]) -> Tensor:
        """Return a row as a vector `[ranks · width]` of one dtype, padded with zeros; None and absent names are 0."""
        like = self.like[part.names[0]]
        flat = like.new_empty(self.ranks * part.width, requires_grad=False)
        blocks = torch.split(flat, [*part.sizes, flat.numel() - sum(part.sizes)])
        for name, block in zip(part.names, blocks, strict=False):
            value = row.get(name)
            if value is None:
                block.zero_()
            else:
                block.view(self.like[name].shape).copy_(value)
        blocks[-1].zero_()
        return flat

    def unflatten(self, vectors: Sequence[Tensor]) -> Direction:
        """Return one row from its vectors, one for each of `ranges`, by name and in the order of the parameters."""
        found: Direction = {}
        for part, flat in zip(self.ranges, vectors, strict=True):
            blocks = torch.split(flat[: sum(part.sizes)], list(part.sizes))
            found.update(
                (name, block.view(self.like[name].shape)) for name, block in zip(part.names, blocks, strict=True)
            )
        return {name: found[name] for name in self.like}
