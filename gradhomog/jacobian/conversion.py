"""Conversion of a caller's task gradients to a Jacobian, with validation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradhomog.errors import DataError
from gradhomog.jacobian.jacobian import DenseJacobian, Jacobian


def as_jacobian(rows: Tensor | Mapping[str, Tensor] | Jacobian) -> Jacobian:
    """A Jacobian from stacked task gradients: a tensor `[tasks, params]`, or a dict of `[tasks, *shape]` by name.

    Args:
        rows: of real floating point, dense and in memory; read where they are. A Jacobian is returned as it is.

    Raises:
        DataError: another shape, structure, dtype or layout, or no task.

    >>> as_jacobian(torch.tensor([[3.0, 4.0], [1.0, 0.0]])).gramian()
    tensor([[25.,  3.],
            [ 3.,  1.]], dtype=torch.float64)
    """
    if isinstance(rows, Jacobian):
        return rows
    if isinstance(rows, Tensor):
        if rows.dim() != 2 or rows.shape[0] == 0:
            raise DataError(
                f"`jacobian` must have shape [tasks, params] with at least one task; got {tuple(rows.shape)}. "
                "Stack the task gradients first: torch.stack(gradients)."
            )
        blocks: Mapping[str, Tensor] = {"": rows}
    elif isinstance(rows, Mapping):
        blocks = rows
    else:
        raise DataError(
            f"`jacobian` must be a tensor [tasks, params] or a dict of tensors [tasks, *shape]; "
            f"got {type(rows).__name__}."
        )
    tasks = -1
    for name, value in blocks.items():
        which = f"`{name}`" if name else "it"
        if not isinstance(value, Tensor):
            raise DataError(
                f"`jacobian` must hold tensors; {which} is {type(value).__name__}. Use zeros for a parameter that a "
                "loss does not depend on."
            )
        if not value.is_floating_point():
            raise DataError(f"`jacobian` must be of real floating point; {which} is {value.dtype}.")
        if value.layout != torch.strided or value.is_meta:
            found = "on the device meta" if value.is_meta else f"of layout {value.layout}"
            raise DataError(f"`jacobian` must be dense and in memory; {which} is {found}. Use to_dense() or real data.")
        if value.dim() == 0 or len(value) == 0 or tasks not in (-1, len(value)):
            tasks = 0
            break
        tasks = len(value)
    if tasks < 1:
        counts = {name: value.shape[0] if value.dim() else 0 for name, value in blocks.items()}
        raise DataError(f"every tensor of `jacobian` must have the tasks in its first dimension; found tasks {counts}.")
    return DenseJacobian(blocks)
