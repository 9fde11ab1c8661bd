"""Inner products of the rows of one block: multiplied in float32, added up in float64, exact where that falls short."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

# Columns per block of the batched product. One `bmm` over blocks is 1.2 to 2.3 times as fast as `J @ J.T` on a CPU for
# up to 8 rows of 10⁷ columns (measured; its inner dimension fits the cache), and lets partial sums be added in float64.
BLOCK = 8192
# Columns from which it pays to leave out what lies above the diagonal.
STRIPS_FROM = 2**18


class Product(Protocol):
    """`gramian` or `squared_norms`."""

    def __call__(self, block: Tensor, exact: bool = False) -> Tensor: ...


def of_blocks(blocks: Sequence[Tensor], product: Product) -> Tensor:
    """A product of the rows of each block, float64 `[blocks, tasks]` or `[blocks, tasks, tasks]`.

    Blocks with a row whose squares leave float32's range are multiplied again, in float64.
    """
    fast = [product(block) for block in blocks]
    bad = unsafe([part if part.dim() == 1 else part.diagonal() for part in fast], [block.shape[1] for block in blocks])
    if not any(bad):
        return fast[0][None] if len(fast) == 1 else torch.stack(fast)
    pairs = zip(blocks, bad, fast, strict=True)
    return torch.stack([product(block, exact=True) if no and gains(block) else value for block, no, value in pairs])


def gains(block: Tensor) -> bool:
    """Whether rows whose squares leave float32's range are better multiplied in float64: not if they are just zero."""
    if block.dtype == torch.float64:
        return False
    largest = torch.linalg.vector_norm(block.detach(), torch.inf, dim=1) if block.shape[1] else block.detach().sum(1)
    # An entry of 1e-14 has a square that float32 holds whole; a block of squares of 1e16 has a sum that it holds.
    return bool(((largest > 0) & (largest < 1e-14) | ~(largest < 1e16)).any())


def unsafe(squares: Sequence[Tensor], sizes: Sequence[int]) -> list[bool]:
    """Which blocks have a row whose squares leave float32's range: squared norms of each, and its columns."""
    if not squares:
        return []
    # A square below 1e-30 loses digits in float32 (its smallest normal number is 1.2e-38), one above 1e34 may overflow.
    return [
        not (1e-30 * size <= min(block, default=1.0) and max(block, default=1.0) < 1e34)
        for block, size in zip(_numbers(squares), sizes, strict=True)
    ]


def _numbers(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The numbers of short vectors, in one transfer from where they are."""
    if len(tensors) == 1:
        return [tensors[0].tolist()]
    flat = iter(torch.cat([tensor.detach() for tensor in tensors]).tolist())
    return [[next(flat) for _ in range(len(tensor))] for tensor in tensors]


def gramian(block: Tensor, exact: bool = False) -> Tensor:
    """`block @ block.T`, float64 `[tasks, tasks]`; with a graph or `exact`, in float64 throughout."""
    tasks, size = block.shape
    if exact or block.requires_grad or block.dtype == torch.float64:
        wide = block.double()
        return wide @ wide.T
    if block.dtype != torch.float32:
        return torch.stack([gramian(part.float()) for part in in_parts(block)]).sum(0)
    count = pieces(size)
    if count == 1:
        return torch.mm(block, block.T).double()
    width = size // count
    # [tasks, count · width] seen as `count` matrices [tasks, width]: strides only, no copy.
    parts = block[:, : count * width].view(tasks, count, width).transpose(0, 1)
    strip = _strip(tasks, size)
    if strip == tasks:
        total = torch.bmm(parts, parts.mT).sum(0, dtype=torch.float64)
    else:
        products = [torch.bmm(parts[:, i : i + strip], parts[:, : i + strip].mT) for i in range(0, tasks, strip)]
        total = torch.cat([product.flatten(1) for product in products], dim=1).sum(0, dtype=torch.float64)
        total = total[_places(tasks, strip, total.device)]
    if count * width < size:
        rest = block[:, count * width :]
        total += torch.mm(rest, rest.T)
    return total


def in_parts(block: Tensor) -> Sequence[Tensor]:
    """Views of columns, to be brought from half precision to float32 one by one: a copy of all is twice the rows."""
    parts: Sequence[Tensor] = torch.split(block, max(2**20 // max(len(block), 1), BLOCK), dim=1)
    return parts


@functools.lru_cache(maxsize=256)
def pieces(size: int) -> int:
    """How many pieces of equal width, up to `BLOCK`, so many columns are cut into; those that divide them, if any do.

    Else up to one column for each piece is left over.
    """
    least = max(-(-size // BLOCK), 1)
    return next((count for count in range(least, 2 * least) if size % count == 0), least)


def _strip(tasks: int, size: int) -> int:
    """How many rows of the product are computed at once, from the first column to the diagonal.

    All, where what is left out does not pay for the calls (measured: a quarter is saved for two and three rows and a
    fifth for eight, nothing for four, and from twelve on a half is lost).
    """
    if size < STRIPS_FROM or tasks == 4 or tasks > 8:
        return tasks
    return 1 if tasks < 4 else 4


def _places(tasks: int, strip: int, device: torch.device) -> Tensor:
    """Where each entry `[tasks, tasks]` of the product lies among the strips' one after another."""
    found, start = torch.empty(tasks, tasks, dtype=torch.long), 0
    for first in range(0, tasks, strip):
        last = min(first + strip, tasks)
        numbers = torch.arange(start, start + (last - first) * last).view(-1, last)
        found[first:last, :last] = numbers
        found[:last, first:last] = numbers.T
        start += numbers.numel()
    return found.to(device)


def squared_norms(block: Tensor, exact: bool = False) -> Tensor:
    """Row by row the sum of squares, float64 `[tasks]`; with a graph or `exact`, in float64 throughout."""
    tasks, size = block.shape
    if block.requires_grad or block.dtype == torch.float64:
        return block.double().square().sum(1)
    if block.dtype != torch.float32:
        return torch.stack([squared_norms(part.float(), exact) for part in in_parts(block)]).sum(0)
    if exact:
        norm: Tensor = torch.linalg.vector_norm(block, dim=1, dtype=torch.float64)
        return norm.square()
    # Norms of pieces in float32, their squares added in float64: a reduction in float64 is 20 times as slow (measured).
    whole = size // BLOCK
    pieces = [block[:, : whole * BLOCK].view(tasks, whole, BLOCK)] if whole else []
    pieces += [block[:, None, whole * BLOCK :]] if whole * BLOCK < size else []
    norms = [torch.linalg.vector_norm(piece, dim=2, dtype=torch.float32).double() for piece in pieces]
    return torch.cat(norms, dim=1).square().sum(1) if norms else block.new_zeros(tasks, dtype=torch.float64)
