"""Rows: one gradient per task, as a matrix or as a dict of tensors, read in place and never concatenated."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gradhomog.errors import DataError

Rows = Tensor | Mapping[str, Tensor]
"""A tensor `[tasks, params]`, or a dict of tensors `[tasks, *shape]` keyed by parameter name."""

Direction = Tensor | dict[str, Tensor]
"""One row: a tensor `[params]`, or a dict of tensors `[*shape]`."""

# Columns per block of the batched product. One `bmm` over blocks is 1.2 to 2.3 times as fast as `J @ J.T` on a CPU for
# up to 8 rows of 10⁷ columns (measured; its inner dimension fits the cache), and lets partial sums be added in float64.
BLOCK = 8192


def blocks(rows: Rows) -> dict[str, Tensor]:
    """The rows as matrices `[tasks, size]` by name (`""` for a tensor): views where the memory allows.

    Raises:
        DataError: not a tensor `[tasks, params]` or a non-empty dict of `[tasks, *shape]` with one number of tasks, or
            not of floating point.
    """
    if isinstance(rows, Tensor):
        if rows.dim() != 2 or rows.shape[0] == 0:
            raise DataError(
                f"`jacobian` must have shape [tasks, params] with at least one task; got {tuple(rows.shape)}. "
                "Stack the task gradients first: torch.stack(gradients)."
            )
        named: Mapping[str, Tensor] = {"": rows}
    elif isinstance(rows, Mapping):
        named = rows
    else:
        raise DataError(
            "`jacobian` must be a tensor [tasks, params] or a dict of tensors [tasks, *shape]; "
            f"got {type(rows).__name__}."
        )
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise DataError(
                f"`jacobian` must hold tensors; `{name}` is {type(value).__name__}. Write zeros for a parameter that a "
                "loss does not depend on."
            )
    counts = {name: value.shape[0] if value.dim() else 0 for name, value in named.items()}
    if not counts or min(counts.values()) == 0 or len(set(counts.values())) > 1:
        raise DataError(f"every tensor of `jacobian` must have the tasks in its first dimension; found tasks {counts}.")
    for name, value in named.items():
        if not value.is_floating_point():
            raise DataError(f"`jacobian` must be of floating point; {f'`{name}`' if name else 'it'} is {value.dtype}.")
    return {name: value.reshape(value.shape[0], -1) for name, value in named.items()}


def transform(rows: Rows, function: Callable[[Tensor], Tensor]) -> Direction:
    """Apply a function to the tensor, or to each tensor of the dict."""
    if isinstance(rows, Tensor):
        return function(rows)
    return {name: function(value) for name, value in rows.items()}


def detach(rows: Rows) -> Rows:
    """The same memory, outside the graph."""
    return transform(rows, Tensor.detach)


def select(rows: Rows, tasks: list[int]) -> Rows:
    """The rows of some tasks, copied."""
    return transform(rows, lambda value: value[tasks])


def mean(rows: Rows) -> Direction:
    """The plain learner's direction: the mean over tasks."""
    return transform(rows, lambda value: value.mean(0))


def weighted_mean(rows: Rows, weights: Tensor) -> Direction:
    """`1/N Σ_i weights_i · row_i`, in the dtype of the rows (float16 and bfloat16 rows are summed in float32).

    Cost: one read of the rows, one write of the direction.
    """

    def combine(value: Tensor) -> Tensor:
        flat = value.reshape(value.shape[0], -1)
        dtype = value.dtype if value.dtype.itemsize >= 4 else torch.float32
        scaled = (weights / weights.shape[0]).to(value.device, dtype)
        return (scaled @ flat.to(dtype)).to(value.dtype).reshape(value.shape[1:])

    return transform(rows, combine)


def mix(rows: Rows, mixing: Tensor) -> Rows:
    """`mixing @ rows`: new rows, materialised; cost N² · params."""

    def combine(value: Tensor) -> Tensor:
        flat = value.reshape(value.shape[0], -1)
        dtype = value.dtype if value.dtype.itemsize >= 4 else torch.float32
        mixed = mixing.to(value.device, dtype) @ flat.to(dtype)
        return mixed.to(value.dtype).reshape(-1, *value.shape[1:])

    return transform(rows, combine)


def block_gramians(rows: Rows) -> tuple[tuple[str, ...], Tensor]:
    """The Gramian of each block, float64 `[blocks, tasks, tasks]`, and the blocks' names.

    Rows of float32 and narrower are multiplied in float32 and added up in float64. Blocks with a row whose squares
    leave float32's range (norms below about 1e-15·√size, or above 1e17) are multiplied in float64 instead, so the
    result is equivariant from 1e-18 to 1e18. Differentiable (in float64) where the rows need a gradient.

    Cost: one read of the rows, N²/2 · params multiply-adds.
    """
    named = blocks(rows)
    fast = torch.stack([_gramian(block) for block in named.values()])
    unsafe = _unsafe(fast.diagonal(dim1=1, dim2=2), named)
    if not any(unsafe):
        return tuple(named), fast
    exact = [
        _product(block.double()) if bad and block.dtype != torch.float64 else gramian
        for block, bad, gramian in zip(named.values(), unsafe, fast.unbind(), strict=True)
    ]
    return tuple(named), torch.stack(exact)


def block_squared_norms(rows: Rows) -> tuple[tuple[str, ...], Tensor]:
    """The squared norms of each block's rows, float64 `[blocks, tasks]`: what `block_gramians` has on its diagonals.

    Cost: one read of the rows, N · params multiply-adds.
    """
    named = blocks(rows)
    fast = torch.stack([_squares(block) for block in named.values()])
    unsafe = _unsafe(fast, named)
    if not any(unsafe):
        return tuple(named), fast
    exact = [
        _exact_squares(block) if bad else squares
        for block, bad, squares in zip(named.values(), unsafe, fast.unbind(), strict=True)
    ]
    return tuple(named), torch.stack(exact)


def finite_tasks(rows: Rows) -> Tensor:
    """Which rows hold neither NaN nor infinity, judged by their sums, `[tasks]`. Cost: one read of the rows."""
    sums = [block.sum(1, dtype=torch.promote_types(block.dtype, torch.float32)) for block in blocks(rows).values()]
    return torch.stack([torch.isfinite(total) for total in sums]).all(0)


def safe_sqrt(squares: Tensor) -> Tensor:
    """Square roots whose derivative at zero is zero, not NaN."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, torch.ones_like(squares)).sqrt(), 0.0)


def _product(block: Tensor) -> Tensor:
    return block @ block.T


def _unsafe(squares: Tensor, named: Mapping[str, Tensor]) -> list[bool]:
    """Which blocks have a row whose squares leave float32's range, `squares` being `[blocks, tasks]`."""
    sizes = torch.tensor([block.shape[1] for block in named.values()], dtype=squares.dtype, device=squares.device)
    # A square below 1e-30 loses digits in float32 (its smallest normal number is 1.2e-38), one above 1e34 may overflow.
    unsafe: list[bool] = ((squares < 1e-30 * sizes[:, None]) | ~(squares < 1e34)).any(dim=1).tolist()
    return unsafe


def _exact_squares(block: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(block, dim=1, dtype=torch.float64)
    return norms.square()


def _squares(block: Tensor) -> Tensor:
    tasks, size = block.shape
    if block.requires_grad or block.dtype == torch.float64:
        return block.double().square().sum(1)
    # Norms of pieces in float32, their squares added in float64: a reduction in float64 is 20 times as slow (measured).
    whole = size // BLOCK
    pieces = [block[:, : whole * BLOCK].view(tasks, whole, BLOCK)] if whole else []
    pieces += [block[:, None, whole * BLOCK :]] if whole * BLOCK < size else []
    norms = [torch.linalg.vector_norm(piece, dim=2, dtype=torch.float32).double() for piece in pieces]
    return torch.cat(norms, dim=1).square().sum(1) if norms else block.new_zeros(tasks, dtype=torch.float64)


def _gramian(block: Tensor) -> Tensor:
    tasks, size = block.shape
    if block.requires_grad or block.dtype == torch.float64:
        return _product(block.double())
    whole = size // BLOCK
    total = torch.zeros(tasks, tasks, dtype=torch.float64, device=block.device)
    if whole:
        # [tasks, whole · BLOCK] seen as `whole` matrices [tasks, BLOCK]: strides only, no copy.
        parts = block[:, : whole * BLOCK].view(tasks, whole, BLOCK).transpose(0, 1).to(torch.float32)
        total += torch.bmm(parts, parts.transpose(1, 2)).double().sum(0)
    if whole * BLOCK < size:
        total += _product(block[:, whole * BLOCK :].to(torch.float32)).double()
    return total
