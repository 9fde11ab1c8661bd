"""Arithmetic on the rows of one block: inner products, weighted sums, checks for NaN and infinity.

Products are computed in the dtype of the rows (float32 for half precision), sums of products in float64.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from gradhomog.rows.device_copies import to_cpu, to_device

# Columns per chunk of the batched product. One `bmm` over chunks is 1.2 to 2.3 times as fast as `J @ J.T` on a CPU for
# up to 8 rows of 10⁷ columns (measured; the inner dimension fits the cache), and its partial sums are added in float64.
CHUNK_COLUMNS = 8192

# An operation on a tensor with at most this number of elements takes longer to start than to compute.
SMALL_TENSOR = 2 * CHUNK_COLUMNS

Product = Callable[[Tensor, bool], Tensor]
"""The function `gramian` or `squared_norms`."""


def block_products(blocks: Iterable[Tensor], product: Product) -> list[Tensor]:
    """Apply a product to each block `[tasks, *shape]`; returns float64 `[tasks, tasks]` or `[tasks]` per block.

    The products are on the CPU. If the squares of a row exceed the range of float32, its block is multiplied again in
    float64. One transfer from the device to the CPU; two more if a row is zero or exceeds the range.
    """
    found, matrices = list[Tensor](), list[Tensor]()
    for block in blocks:
        matrix = block if block.dim() == 2 else block.reshape(len(block), block[0].numel())
        found.append(product(matrix, False))
        matrices.append(matrix)
    if found and not found[0].is_cpu:
        found = to_cpu(found)
    diagonals = [value if value.dim() == 1 else value.diagonal() for value in found]
    unsafe = outside_float32_range(diagonals, matrices)
    if not unsafe:
        return found
    wide = require_float64([matrices[index] for index in unsafe])
    again = [index for index, needed in zip(unsafe, wide, strict=True) if needed]
    for index, exact in zip(again, to_cpu([product(matrices[index], True) for index in again]), strict=True):
        found[index] = exact
    return found


def outside_float32_range(squares: Sequence[Tensor], matrices: Sequence[Tensor]) -> list[int]:
    """Return the indices of matrices of which a squared norm `[tasks]` of the rows may be inaccurate in float32.

    Below 1e-30 times the number of columns the mean square of a row is below 1e-30, and most squares may lose digits
    in float32, whose smallest normal number is 1.2e-38. Above 1e34 sums of squares may overflow.
    """
    if not squares:
        return []
    numbers = torch.cat(list(squares)).tolist() if len(squares) > 1 else squares[0].tolist()
    found, start = [], 0
    for index, (square, matrix) in enumerate(zip(squares, matrices, strict=True)):
        part = numbers[start : start + len(square)]
        start += len(square)
        if not (1e-30 * matrix.shape[-1] <= min(part, default=1.0) and max(part, default=1.0) < 1e34):
            found.append(index)
    return found


def require_float64(matrices: Sequence[Tensor]) -> list[bool]:
    """For each matrix, True if a row has nonzero entries whose squares are inaccurate in float32. One transfer."""
    read = [index for index, one in enumerate(matrices) if one.dtype != torch.float64 and one.shape[1]]
    # Largest entries of each row; those of half precision are exact in float32.
    largest = to_cpu([torch.linalg.vector_norm(matrices[i].detach(), torch.inf, dim=1).float() for i in read])
    found = [False] * len(matrices)
    for index, entries in zip(read, largest, strict=True):
        # The square 1e-28 is a normal number of float32; 8192 squares of 1e16 add up to less than its maximum.
        found[index] = bool(((entries > 0) & (entries < 1e-14) | ~(entries < 1e16)).any())
    return found


def gramian(block: Tensor, exact: bool = False) -> Tensor:
    """Return `block @ block.T`, float64 `[tasks, tasks]`; with a graph, or if `exact`, computed in float64."""
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


def squared_norms(block: Tensor, exact: bool = False) -> Tensor:
    """Return the sum of squares of each row, float64 `[tasks]`; with a graph, or if `exact`, computed in float64."""
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


def weighted_sum(block: Tensor, shares: Tensor) -> Tensor:
    """Return `Σ_i shares_i · block_i` for a block `[tasks, *shape]`, in its dtype; half precision sums in float32.

    `shares` are on the device of the block.
    """
    narrow = block.dtype.itemsize < 4
    scaled = shares.to(block.device, torch.float32 if narrow else block.dtype)
    flat = block if block.dim() == 2 else block.reshape(block.shape[0], -1)
    if narrow:
        parts = column_chunks(flat)
        found = torch.cat([torch.mv(part.t().float(), scaled).to(block.dtype) for part in parts])
    else:
        found = torch.mv(flat.t(), scaled)  # block.mean(0) takes up to twice as long (measured)
    return found if block.dim() == 2 else found.reshape(block.shape[1:])


def mix_rows(block: Tensor, mixing: Tensor) -> Tensor:
    """Return `mixing @ block` for a block `[tasks, *shape]`, or its rows times weights `[tasks]`, in its dtype."""
    dtype = block.dtype if block.dtype.itemsize >= 4 else torch.float32
    mixing = to_device(mixing, block.device, dtype)
    if mixing.dim() == 1:  # row by row: NaN in one row does not spread to others
        return (mixing.view(-1, *[1] * (block.dim() - 1)) * block.to(dtype)).to(block.dtype)
    flat = block.reshape(block.shape[0], -1)
    return (mixing @ flat.to(dtype)).to(block.dtype).reshape(block.shape)


def matrix_product(later: Tensor, earlier: Tensor) -> Tensor:
    """Return the mixing of two successive stages, as weights `[tasks]` or a matrix `[tasks, tasks]`."""
    if later.dim() == 1:
        return later * earlier if earlier.dim() == 1 else later[:, None] * earlier
    return later * earlier if earlier.dim() == 1 else later @ earlier


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """True if no tensor contains NaN or infinity. Cost: one read, and one transfer from each device."""
    tensors, small, parts = list(tensors), list[Tensor](), list[Tensor]()
    if len(set(map(operator.attrgetter("is_cpu"), tensors))) > 1:  # losses on the CPU, a direction on a GPU
        return all(all_finite([tensor for tensor in tensors if tensor.is_cpu == is_cpu]) for is_cpu in (True, False))
    for tensor in tensors:
        (small if tensor.numel() <= SMALL_TENSOR else parts).append(tensor.detach().reshape(-1))
    if small:
        parts.append(torch.cat(small))
    total: Tensor | None = None
    for value in parts:
        # A sum takes 1/25 of the time of torch.isfinite (measured).
        part = value.sum() if value.dtype.itemsize >= 4 else row_sums(value[None])[0]
        total = part if total is None else total + part
    if total is None or math.isfinite(total):
        return True
    return all(map(is_finite, tensors))  # finite numbers may add up to infinity


def finite_rows(blocks: Iterable[Tensor]) -> list[bool]:
    """For each row of blocks `[tasks, *shape]`, True if it is finite in all of them. Cost: one read, one transfer."""
    matrices = [block.detach().reshape(len(block), -1) for block in blocks]
    totals: list[float] = torch.stack([row_sums(matrix).double() for matrix in matrices]).sum(0).tolist()
    return [
        math.isfinite(total) or all(is_finite(matrix[task]) for matrix in matrices) for task, total in enumerate(totals)
    ]


def row_sums(matrix: Tensor) -> Tensor:
    """Return row sums; half precision is summed in parts, because a sum in float32 would copy the whole tensor."""
    if matrix.dtype.itemsize >= 4:
        return matrix.sum(1)
    return torch.stack([part.float().sum(1) for part in column_chunks(matrix)]).sum(0)


def is_finite(value: Tensor) -> bool:
    """True if a tensor contains neither NaN nor infinity."""
    return bool(torch.isfinite(value).all())
