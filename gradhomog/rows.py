"""Rows: one gradient per task, as a matrix or as a dict of tensors, read in place and never concatenated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradhomog import products
from gradhomog.errors import DataError
from gradhomog.unformed import UnformedRows

Rows = Tensor | Mapping[str, Tensor]
"""A tensor `[tasks, params]`, or a dict of tensors `[tasks, *shape]` keyed by parameter name."""

AnyRows = Rows | UnformedRows
"""What the host itself works on."""

Direction = Tensor | dict[str, Tensor]
"""One row: a tensor `[params]`, or a dict of tensors `[*shape]`."""


def blocks(rows: Rows) -> dict[str, Tensor]:
    """The rows as matrices `[tasks, size]` by name (`""` for a tensor): views where the memory allows.

    Raises:
        DataError: not a tensor `[tasks, params]` or a non-empty dict of `[tasks, *shape]` with one number of tasks, or
            not of floating point.
    """
    if isinstance(rows, Tensor):
        if rows.dim() == 2 and rows.shape[0] and rows.is_floating_point():
            return {"": rows}
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


def detach(rows: AnyRows) -> AnyRows:
    """The same memory, outside the graph."""
    if isinstance(rows, UnformedRows):
        return rows.detach()
    return transform(rows, Tensor.detach)


def select(rows: AnyRows, tasks: list[int]) -> AnyRows:
    """The rows of some tasks, copied."""
    if isinstance(rows, UnformedRows):
        return rows.select(tasks)
    return transform(rows, lambda value: value[tasks])


def repeated(value: Tensor) -> bool:
    """Whether all rows are one in memory, as `expand` makes them: it is read once, and what holds of it holds of all.

    Not of rows with a graph: the derivative of what is taken out of a view is as large as all of them.
    """
    return value.shape[0] > 1 and value.stride(0) == 0 and not value.requires_grad


def any_repeated(rows: AnyRows) -> bool:
    """Whether rows of some tensor are one in memory."""
    if isinstance(rows, UnformedRows):
        return False
    return any(repeated(value) for value in ([rows] if isinstance(rows, Tensor) else rows.values()))


def mean(rows: AnyRows, *, owned: bool = False) -> Direction:
    """The plain learner's direction: the mean over tasks.

    Of rows that are one in memory it is a copy of that one; or itself, if the rows are `owned` by nobody else and it is
    all that their memory holds.
    """
    if isinstance(rows, UnformedRows):
        return rows.weighted_mean(torch.ones(rows.tasks, dtype=torch.float64))

    def average(value: Tensor) -> Tensor:
        if not repeated(value):
            tasks = value.shape[0]  # value.mean(0) takes up to twice as long (measured)
            return _weighted_sum(value, torch.full((tasks,), 1 / tasks, dtype=torch.float64))
        row = value[0]
        alone = row.untyped_storage().nbytes() == row.numel() * row.element_size()
        return row if owned and alone else row.clone()

    return transform(rows, average)


def weighted_mean(rows: AnyRows, weights: Tensor) -> Direction:
    """`1/N Σ_i weights_i · row_i`, in the dtype of the rows (float16 and bfloat16 rows are summed in float32).

    Cost: one read of the rows, one write of the direction.
    """
    if isinstance(rows, UnformedRows):
        return rows.weighted_mean(weights)
    shares = weights / weights.shape[0]
    return transform(rows, lambda value: _weighted_sum(value, shares))


def _weighted_sum(value: Tensor, shares: Tensor) -> Tensor:
    narrow = value.dtype.itemsize < 4
    scaled = shares.to(value.device, torch.float32 if narrow else value.dtype)
    if repeated(value):
        found = (scaled.sum() * (value[0].float() if narrow else value[0])).to(value.dtype)
    else:
        flat = value if value.dim() == 2 else value.reshape(value.shape[0], -1)
        found = _narrow_sum(flat, scaled) if narrow else torch.mv(flat.t(), scaled)
    return found if found.dim() == value.dim() - 1 else found.reshape(value.shape[1:])


def _narrow_sum(flat: Tensor, scaled: Tensor) -> Tensor:
    """The sum of rows of half precision, formed in float32, in theirs."""
    parts = torch.split(flat, products.converted(len(flat)), dim=1)
    return torch.cat([torch.mv(part.t().float(), scaled).to(flat.dtype) for part in parts])


def mix(rows: Rows, mixing: Tensor) -> Rows:
    """`mixing @ rows`: new rows, materialised; cost N² · params. Of weights that are all one, the rows given."""
    if mixing.dim() == 1:
        if not mixing.requires_grad and mixing.tolist() == [1.0] * len(mixing):
            return rows
        mixing = torch.diag(mixing)

    def combine(value: Tensor) -> Tensor:
        flat = value.reshape(value.shape[0], -1)
        dtype = value.dtype if value.dtype.itemsize >= 4 else torch.float32
        mixed = mixing.to(value.device, dtype) @ flat.to(dtype)
        return mixed.to(value.dtype).reshape(-1, *value.shape[1:])

    return transform(rows, combine)


def block_gramians(rows: AnyRows) -> tuple[tuple[str, ...], Tensor]:
    """The Gramian of each block, float64 `[blocks, tasks, tasks]`, and the blocks' names.

    Rows of float32 and narrower are multiplied in float32 and added up in float64. Blocks with a row whose squares
    leave float32's range (norms below about 1e-15·√size, or above 1e17) are multiplied in float64 instead, so the
    result is equivariant from 1e-18 to 1e18. Differentiable (in float64) where the rows need a gradient.

    Cost: one read of the rows, N²/2 · params multiply-adds.
    """
    if isinstance(rows, UnformedRows):
        return rows.block_gramians()
    named = blocks(rows)
    return tuple(named), products.of_blocks(list(named.values()), _read_once(products.gramian))


def block_squared_norms(rows: AnyRows) -> tuple[tuple[str, ...], Tensor]:
    """The squared norms of each block's rows, float64 `[blocks, tasks]`: what `block_gramians` has on its diagonals.

    Cost: one read of the rows, N · params multiply-adds.
    """
    if isinstance(rows, UnformedRows):
        return rows.block_squared_norms()
    named = blocks(rows)
    return tuple(named), products.of_blocks(list(named.values()), _read_once(products.squared_norms))


def finite_tasks(rows: AnyRows) -> list[bool]:
    """Which rows hold neither NaN nor infinity. Cost: one read of the rows."""
    if isinstance(rows, UnformedRows):
        return rows.finite_tasks()
    named = list(blocks(rows).values())
    totals = _numbers([_sum(block, 1) for block in named])
    return [
        all(math.isfinite(total[task]) or _look(block[task]) for total, block in zip(totals, named, strict=True))
        for task in range(len(named[0]))
    ]


def all_finite(rows: Rows | Direction) -> bool:
    """Whether they hold neither NaN nor infinity. Cost: one read of the rows."""
    values = [rows] if isinstance(rows, Tensor) else rows.values()
    return all(which_finite([value[:1] if value.dim() and repeated(value) else value for value in values]))


def which_finite(tensors: Sequence[Tensor]) -> list[bool]:
    """Of each tensor, whether it holds neither NaN nor infinity. Cost: one read of all."""
    totals = _numbers([_sum(value, None) for value in tensors])
    return [math.isfinite(total) or _look(value) for total, value in zip(totals, tensors, strict=True)]


def _sum(value: Tensor, dim: int | None) -> Tensor:
    """A sum takes 1/25 of the time of looking at every number (measured), but can overflow where no number has."""
    return value.detach().sum(dim, dtype=torch.promote_types(value.dtype, torch.float32))


def _look(value: Tensor) -> bool:
    return bool(torch.isfinite(value).all())


def _numbers(tensors: Sequence[Tensor]) -> list[Any]:
    """The numbers of tensors of one shape, in one transfer from where they are."""
    if len(tensors) == 1:
        return [tensors[0].tolist()]
    found: list[Any] = torch.stack([tensor.double() for tensor in tensors]).tolist() if tensors else []
    return found


def _read_once(product: products.Product) -> products.Product:
    """The same product, for which rows that are one in memory are read as that one."""

    def read(block: Tensor, exact: bool = False) -> Tensor:
        if not repeated(block):
            return product(block, exact)
        one = product(block[:1], exact)
        return one.expand([block.shape[0]] * one.dim())

    return read


def safe_sqrt(squares: Tensor) -> Tensor:
    """√x where x > 0, else 0, with derivatives of zero there: those of `sqrt` are infinite at zero, and end as NaN.

    Args:
        squares: of any shape and floating dtype; below zero by rounding counts as zero.

    Returns:
        Roots of the same shape, differentiable as often as asked for.

    >>> x = torch.tensor([4.0, 0.0], requires_grad=True)
    >>> torch.autograd.grad(safe_sqrt(x).sum(), x)
    (tensor([0.2500, 0.0000]),)
    """
    if not torch.is_grad_enabled():
        return squares.clamp_min(0).sqrt()
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, torch.ones_like(squares)).sqrt(), 0.0)
