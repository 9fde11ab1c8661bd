"""Arithmetic on the rows of one block: inner products, and checks for NaN and infinity.

Products are computed in the dtype of the rows (float32 for half precision), sums of products in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.rows.device_copies import to_cpu

# Columns per chunk of the batched product. One `bmm` over chunks is 1.2 to 2.3 times as fast as `J @ J.T` on a CPU for
# up to 8 rows of 10⁷ columns (measured; the inner dimension fits the cache), and its partial sums are added in float64.
CHUNK_COLUMNS = 8192

# Elements of vectors that are stacked at once: 1 MB in float32, which the cache of a core keeps. On a GPU, where an
# operation takes longer to start, the copies are only bounded.
STACKED, STACKED_ON_GPU = 2**18, 2**25
CACHED = 8 * CHUNK_COLUMNS  # columns at once if at most 8 vectors are multiplied in pairs

# An operation on a tensor with at most this number of elements takes longer to start than to compute.
SMALL_TENSOR = 2 * CHUNK_COLUMNS

Vectors = Tensor | Sequence[Tensor]
"""Rows in one matrix `[tasks, elements]`, or in one vector `[elements]` per task."""

Product = Callable[[Vectors, bool], Tensor]
"""The function `gramian` or `squared_norms`."""


def products(blocks: Sequence[Vectors], product: Product) -> list[Tensor]:
    """Apply a product to the rows of each block; returns float64 `[tasks, tasks]` or `[tasks]` per block.

    The products are on the CPU. If the squares of a row exceed the range of float32, its block is multiplied again in
    float64. One transfer from the device to the CPU; two more if a row is zero or exceeds the range.
    """
    found, squares = [], []
    for block in blocks:
        found.append(product(block, False))
    if found and not found[0].is_cpu:
        found = to_cpu(found)
    for value in found:
        squares.append(value if value.dim() == 1 else value.diagonal())
    if unsafe := outside_float32_range(squares, blocks):
        again = require_float64(blocks, unsafe)
        for index, exact in zip(again, to_cpu([product(blocks[index], True) for index in again]), strict=True):
            found[index] = exact
    return found


def outside_float32_range(squares: Sequence[Tensor], blocks: Sequence[Vectors]) -> list[int]:
    """Return the indices of blocks of which a squared norm `[tasks]` of the rows may be inaccurate in float32.

    Below 1e-30 times the number of columns the mean square of a row is below 1e-30, and most squares may lose digits
    in float32, whose smallest normal number is 1.2e-38. Above 1e34 sums of squares may overflow.
    """
    if not squares:
        return []
    numbers = torch.cat(list(squares)).tolist() if len(squares) > 1 else squares[0].tolist()
    found, start = [], 0
    for index, (square, block) in enumerate(zip(squares, blocks, strict=True)):
        part = numbers[start : start + len(square)]
        start += len(square)
        columns = block.shape[1] if isinstance(block, Tensor) else block[0].numel()
        if not (1e-30 * columns <= min(part, default=1.0) and max(part, default=1.0) < 1e34):
            found.append(index)
    return found


def require_float64(blocks: Sequence[Vectors], indices: Sequence[int]) -> list[int]:
    """Return those indices of blocks of which a row has nonzero entries with inaccurate squares in float32.

    One transfer.
    """
    read = [index for index in indices if blocks[index][0].dtype != torch.float64 and blocks[index][0].numel()]
    # Largest entries of each row; those of half precision are exact in float32.
    largest = to_cpu([
        torch.stack([torch.linalg.vector_norm(row.detach(), torch.inf).float() for row in blocks[index]])
        for index in read
    ])  # fmt: skip
    # The square 1e-28 is a normal number of float32; 8192 squares of 1e16 add up to less than its maximum.
    return [
        index
        for index, entries in zip(read, largest, strict=True)
        if bool(((entries > 0) & (entries < 1e-14) | ~(entries < 1e16)).any())
    ]


def gramian(block: Vectors, exact: bool = False) -> Tensor:
    """Return the inner products of the rows, float64 `[tasks, tasks]`; in float64 with a graph, or if `exact`."""
    if not isinstance(block, Tensor):
        if len(block) > 8 or not _pairwise_is_faster(block, exact):
            return _sum([gramian(chunk, exact) for chunk in stack_chunks(block)])
        pairs = torch.tril_indices(len(block), len(block))
        places = list(zip(*pairs.tolist(), strict=True))
        sums = [torch.stack([torch.dot(part[i], part[j]) for i, j in places]) for part in _chunks(block, CACHED)]
        lower = torch.zeros(len(block), len(block), dtype=torch.float64)
        lower[pairs[0], pairs[1]] = _sum([part.double() for part in sums])
        return lower + lower.tril(-1).T
    tasks, size = block.shape
    if exact or block.requires_grad or block.dtype == torch.float64:
        wide = block.double()
        return wide @ wide.T
    if block.dtype != torch.float32:
        return torch.stack([gramian(part.float()) for part in column_chunks(block)]).sum(0)
    count = chunk_count(size)
    if count == 1:
        return torch.mm(block, block.T).double()
    width = size // count
    # [tasks, count · width] viewed as `count` matrices [tasks, width]: strides only, no copy.
    parts = block[:, : count * width].view(tasks, count, width).transpose(0, 1)
    total = torch.bmm(parts, parts.mT).sum(0, dtype=torch.float64)
    if count * width < size:
        rest = block[:, count * width :]
        total += torch.mm(rest, rest.T)
    return total


def squared_norms(block: Vectors, exact: bool = False) -> Tensor:
    """Return the sum of squares of each row, float64 `[tasks]`; in float64 with a graph, or if `exact`."""
    if not isinstance(block, Tensor):
        if not _pairwise_is_faster(block, exact):
            return _sum([squared_norms(chunk, exact) for chunk in stack_chunks(block)])
        sums = [torch.stack([torch.dot(row, row) for row in chunk]) for chunk in _chunks(block, CACHED)]
        return _sum([part.double() for part in sums])
    tasks, size = block.shape
    if block.requires_grad or block.dtype == torch.float64:
        return block.double().square().sum(1)
    if block.dtype != torch.float32:
        return torch.stack([squared_norms(part.float(), exact) for part in column_chunks(block)]).sum(0)
    if exact:
        norm: Tensor = torch.linalg.vector_norm(block, dim=1, dtype=torch.float64)
        return norm.square()
    # Norms of chunks in float32, their squares added in float64: a reduction in float64 is 20 times as slow (measured).
    whole = size // CHUNK_COLUMNS
    chunks = [block[:, : whole * CHUNK_COLUMNS].view(tasks, whole, CHUNK_COLUMNS)] if whole else []
    chunks += [block[:, None, whole * CHUNK_COLUMNS :]] if whole * CHUNK_COLUMNS < size else []
    norms = [torch.linalg.vector_norm(chunk, dim=2, dtype=torch.float32).double() for chunk in chunks]
    return torch.cat(norms, dim=1).square().sum(1) if norms else block.new_zeros(tasks, dtype=torch.float64)


def column_chunks(block: Tensor) -> Sequence[Tensor]:
    """Return views of chunks of columns, to convert half precision to float32 chunk by chunk."""
    parts: Sequence[Tensor] = torch.split(block, max(2**20 // max(len(block), 1), CHUNK_COLUMNS), dim=1)
    return parts


@functools.lru_cache(maxsize=256)
def chunk_count(size: int) -> int:
    """Return the number of chunks of at most `CHUNK_COLUMNS` columns into which `size` columns are split.

    It divides `size` if possible. Otherwise the remainder has fewer columns than there are chunks.
    """
    least = max(-(-size // CHUNK_COLUMNS), 1)
    return next((count for count in range(least, 2 * least) if size % count == 0), least)


def _pairwise_is_faster(rows: Sequence[Tensor], exact: bool) -> bool:
    """True if dot products of pairs are faster than stacking chunks (measured, up to 8 rows)."""
    some = rows[0]
    plain = not exact and not any(row.requires_grad for row in rows)
    return plain and some.device.type == "cpu" and some.dtype == torch.float32 and some.numel() > SMALL_TENSOR


def _chunks(rows: Sequence[Tensor], width: int) -> Iterator[list[Tensor]]:
    for start in range(0, rows[0].numel(), width):
        yield [row[start : start + width] for row in rows]


def stack_chunks(rows: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield matrices `[len(rows), columns]` of a bounded size, at least one, also for empty rows."""
    elements = STACKED if rows[0].device.type == "cpu" else STACKED_ON_GPU
    yield from (torch.stack(chunk) for chunk in _chunks(rows, max(elements // len(rows), CHUNK_COLUMNS)))
    if rows[0].numel() == 0:
        yield torch.stack(list(rows))


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


def as_matrix(block: Tensor) -> Tensor:
    """Return a block `[tasks, *shape]` as a matrix `[tasks, elements]`."""
    return block.reshape(len(block), block.numel() // len(block))


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """True if no tensor contains NaN or infinity. Cost: one read, and one transfer from each other device."""
    tensors = list(tensors)
    # A sum takes 1/25 of the time of torch.isfinite (measured).
    sums = [sum_of(tensor.detach()) for tensor in tensors]
    total = sum(float(one) for one in sums if one.is_cpu)
    if elsewhere := [one.double() for one in sums if not one.is_cpu]:
        total += float(torch.stack(elsewhere).sum())
    return math.isfinite(total) or all(map(is_finite, tensors))  # finite numbers may add up to infinity


def finite_rows(sums: Tensor, row: Callable[[int], Mapping[str, Tensor]]) -> list[bool]:
    """For each row, True if it is finite: if its sum is, or, as finite numbers may add up to infinity, each number.

    Args:
        sums: of all elements of a row, `[tasks]`. One transfer.
        row: returns a row.
    """
    return [
        math.isfinite(total) or all(is_finite(part) for part in row(task).values())
        for task, total in enumerate(sums.tolist())
    ]


def sum_of(tensor: Tensor) -> Tensor:
    """Return the sum of all elements; of half precision in float32."""
    return tensor.sum() if tensor.dtype.itemsize >= 4 else row_sums(tensor.reshape(1, -1))[0]


def row_sums(matrix: Tensor) -> Tensor:
    """Return row sums; half precision is summed in parts, because a sum in float32 would copy the whole tensor."""
    if matrix.dtype.itemsize >= 4:
        return matrix.sum(1)
    return torch.stack([part.float().sum(1) for part in column_chunks(matrix)]).sum(0)


def is_finite(value: Tensor) -> bool:
    """True if a tensor contains neither NaN nor infinity."""
    return bool(torch.isfinite(value).all())
