"""One gradient per task, as a matrix or as a dict of tensors, read in place and never concatenated."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from gradhomog.errors import DataError
from gradhomog.rows.unformed import UnformedRows

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
