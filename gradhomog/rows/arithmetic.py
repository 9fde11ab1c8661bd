"""Arithmetic on the rows of one block: inner products, checks for NaN and infinity, and square roots of norms.

Products are computed in the dtype of the rows (float32 for half precision), sums of products in float64.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

# Columns per chunk of the batched product. One `bmm` over chunks is 1.2 to 2.3 times as fast as `J @ J.T` on a CPU for
# up to 8 rows of 10⁷ columns (measured; the inner dimension fits the cache), and its partial sums are added in float64.
CHUNK_COLUMNS = 8192

# Elements of vectors that are stacked at once: 1 MB in float32, which the cache of a core keeps. On a GPU, where an
# operation takes longer to start, the copies are only bounded.
STACKED, STACKED_ON_GPU = 2**18, 2**25

# An operation on a tensor with at most this number of elements takes longer to start than to compute.
SMALL_TENSOR = 2 * CHUNK_COLUMNS

Vectors = Tensor | Sequence[Tensor]
"""Rows in one matrix `[tasks, elements]`, or in one vector `[elements]` per task."""

Product = Callable[[Vectors], Tensor]
"""The function `gramian`, `exact_gramian` or `squared_norms`."""


def products(blocks: Sequence[Vectors], product: Product) -> list[Tensor]:
    """Apply a product to the rows of each block; returns float64 `[tasks, tasks]` or `[tasks]` per block.

    The products are on the CPU. If the squares of a row exceed the range of float32, its block is multiplied again in
    float64. One transfer from the device to the CPU, one more if a row is zero, and one if a block is multiplied again.
    """
    found, outside, with_zeros = list(map(product, blocks)), list[int](), dict[int, int]()
    if found and not found[0].is_cpu:
        found = to_cpu(found)
    for index, (value, block) in enumerate(zip(found, blocks, strict=True)):
        like = block if isinstance(block, Tensor) else block[0]
        if like.dtype == torch.float64:
            continue
        squares = (value if value.dim() == 1 else value.diagonal()).tolist()
        # Below 1e-30 times the number of columns the mean square of a row is below 1e-30, and most squares may lose
        # digits in float32, whose smallest normal number is 1.2e-38. Above 1e34 sums of squares may overflow.
        nonzero = list(filter(None, squares))
        if not (1e-30 * like.shape[-1] <= min(nonzero, default=1.0) and max(nonzero, default=1.0) < 1e34):
            outside.append(index)
        elif len(nonzero) < len(squares):
            with_zeros[index] = len(nonzero)
    outside += _underflowing(blocks, with_zeros) if with_zeros else []
    if outside:
        again = [_sum([product(chunk.double()) for chunk in matrices(blocks[index])]) for index in outside]
        for index, value in zip(outside, to_cpu(again), strict=True):
            found[index] = value
    return found


def _underflowing(blocks: Sequence[Vectors], nonzero: Mapping[int, int]) -> list[int]:
    """Return the blocks with other rows than those of nonzero squares: entries below 3e-23 have the square zero."""
    counts = to_cpu([torch.stack([row.any() for row in blocks[index]]).sum() for index in nonzero])
    return [index for index, count in zip(nonzero, counts, strict=True) if count > nonzero[index]]


def gramian(block: Vectors) -> Tensor:
    """Return the inner products of the rows, float64 `[tasks, tasks]`; computed in float64 if they have a graph."""
    if not isinstance(block, Tensor) or block.dtype.itemsize < 4:
        return _sum([gramian(chunk) for chunk in matrices(block)])
    if block.requires_grad or block.dtype == torch.float64:
        wide = block.double()
        return wide @ wide.T
    if block.shape[1] <= SMALL_TENSOR:
        return torch.mm(block, block.T).double()
    return _sum([torch.bmm(part, part.mT).sum(0, dtype=torch.float64) for part in _batches(block)])


def exact_gramian(block: Vectors) -> Tensor:
    """Return the inner products of the rows, float64 `[tasks, tasks]`, computed in float64."""
    return _sum([gramian(chunk.double()) for chunk in matrices(block)])


def squared_norms(block: Vectors) -> Tensor:
    """Return the sum of squares of each row, float64 `[tasks]`; computed in float64 if they have a graph."""
    if not isinstance(block, Tensor):
        return torch.cat([squared_norms(row[None]) for row in block])
    if block.dtype.itemsize < 4:
        return _sum([squared_norms(chunk) for chunk in matrices(block)])
    if block.requires_grad or block.dtype == torch.float64:
        return block.double().square().sum(1)
    # Norms of chunks in float32, their squares added in float64: a reduction in float64 is 20 times as slow (measured).
    norms = [torch.linalg.vector_norm(part, dim=2).double() for part in _batches(block)]
    return _sum([part.square().sum(0) for part in norms])


def matrices(block: Vectors) -> Iterator[Tensor]:
    """Yield the rows as float matrices `[tasks, columns]` of a bounded size, to convert or to stack them.

    Half precision is converted to float32.
    """
    for chunk in column_chunks(block) if isinstance(block, Tensor) else stack_chunks(block):
        yield chunk if chunk.dtype.itemsize >= 4 else chunk.float()


def column_chunks(block: Tensor) -> Sequence[Tensor]:
    """Return views of chunks of columns, to convert them chunk by chunk."""
    parts: Sequence[Tensor] = torch.split(block, max(2**20 // max(len(block), 1), CHUNK_COLUMNS), dim=1)
    return parts


def _batches(block: Tensor) -> list[Tensor]:
    """Return the columns in matrices `[chunks, tasks, width]`: strides only, no copy."""
    count = block.shape[1] // CHUNK_COLUMNS
    whole = count * CHUNK_COLUMNS
    chunks = [block[:, :whole].view(-1, count, CHUNK_COLUMNS).transpose(0, 1)] if count else []
    return chunks if count and whole == block.shape[1] else [*chunks, block[None, :, whole:]]


def stack_chunks(rows: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield matrices `[len(rows), columns]` of a bounded size, at least one, also for empty rows."""
    elements = STACKED if rows[0].device.type == "cpu" else STACKED_ON_GPU
    width = max(elements // len(rows), CHUNK_COLUMNS)
    for start in range(0, max(rows[0].numel(), 1), width):
        yield torch.stack([row[start : start + width] for row in rows])


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


def as_matrix(block: Tensor) -> Tensor:
    """Return a block `[tasks, *shape]` as a matrix `[tasks, elements]`."""
    return block.reshape(len(block), block.numel() // len(block))


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """True if no tensor contains NaN or infinity. Cost: one read, and one transfer from each other device."""
    tensors, total, elsewhere = list(tensors), 0.0, []
    for tensor in tensors:  # a sum takes 1/25 of the time of torch.isfinite (measured)
        values = tensor.detach() if tensor.requires_grad else tensor
        one = values.sum() if values.dtype.itemsize >= 4 else row_sums(values.reshape(1, -1))[0]
        if one.is_cpu:
            total += one.item()
        else:
            elsewhere.append(one.double())
    if elsewhere:
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


def row_sums(matrix: Tensor) -> Tensor:
    """Return row sums; half precision is summed in parts, because a sum in float32 would copy the whole tensor."""
    if matrix.dtype.itemsize >= 4:
        return matrix.sum(1)
    return torch.stack([part.float().sum(1) for part in column_chunks(matrix)]).sum(0)


def is_finite(value: Tensor) -> bool:
    """True if a tensor contains neither NaN nor infinity."""
    return bool(torch.isfinite(value).all())


def safe_sqrt(squares: Tensor) -> Tensor:
    """√x where x > 0, else 0, with derivative 0; the derivative of `torch.sqrt` at zero is infinite and leads to NaN.

    Args:
        squares: any shape and floating dtype. Values below zero, caused by rounding, count as zero; NaN stays NaN.

    Returns:
        Roots of the same shape, differentiable any number of times.

    >>> x = torch.tensor([4.0, 0.0], requires_grad=True)
    >>> torch.autograd.grad(safe_sqrt(x).sum(), x)
    (tensor([0.2500, 0.0000]),)
    """
    if not torch.is_grad_enabled():
        return squares.clamp_min(0).sqrt()
    zero = squares <= 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())


# Devices whose driver reads the memory of a CPU tensor before `to` returns, also with `non_blocking` ("API
# synchronization behavior" in NVIDIA's manual). MPS may read it later, when the tensor has changed.
READ_BEFORE_RETURN = frozenset({"cuda"})


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy a tensor to a device; from the CPU to a GPU without waiting for the operations that the GPU has to do.

    >>> to_device(torch.tensor([1.0, 2.0]), torch.device("cpu"), torch.float64)
    tensor([1., 2.], dtype=torch.float64)
    """
    enqueue = tensor.device.type == "cpu" and device.type in READ_BEFORE_RETURN
    return tensor.to(device, tensor.dtype if dtype is None else dtype, non_blocking=enqueue)


def task_index(tasks: Sequence[int], device: torch.device) -> Tensor:
    """Return an index of tasks on a device; indexing by a list would wait for the device."""
    return to_device(torch.tensor(list(tasks), dtype=torch.int64), device)


def to_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors of one dtype and device to the CPU, by one copy."""
    if not tensors or tensors[0].is_cpu:
        return list(tensors)
    joined = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()
    parts = torch.split(joined, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
