"""`as_jacobian`: the Jacobian of task gradients in one tensor, or in one tensor per parameter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradhomog.errors import DataError
from gradhomog.rows.jacobian import DenseJacobian, Jacobian


def as_jacobian(rows: Tensor | Mapping[str, Tensor] | Jacobian) -> Jacobian:
    """Create a Jacobian from task gradients: a tensor `[tasks, params]` or a dict of tensors `[tasks, *shape]` by name.

    Args:
        rows: real floating-point tensors, dense and in memory; they are not copied. A Jacobian is returned unchanged.

    Raises:
        DataError: the shape, structure, dtype or layout is invalid, or there is no task.

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
    tasks, device = -1, None
    for name, value in blocks.items():
        where = f" for `{name}`" if name else ""
        if not isinstance(value, Tensor):
            raise DataError(
                f"`jacobian` must contain tensors; got {type(value).__name__}{where}. Use zeros for a parameter that a "
                "loss does not depend on."
            )
        if not value.is_floating_point() or value.dtype.itemsize < 2:  # PyTorch does not compute with float8
            raise DataError(
                f"`jacobian` must have a real floating-point dtype of 16 bits or more; got {value.dtype}{where}. "
                "Convert the rows, for example by .to(torch.bfloat16)."
            )
        if value.layout != torch.strided or value.is_meta:
            found = "a tensor on the device meta" if value.is_meta else f"layout {value.layout}"
            raise DataError(f"`jacobian` must be dense and in memory; got {found}{where}. Use to_dense() or real data.")
        if device not in (None, value.device):
            raise DataError(f"all tensors of `jacobian` must be on one device; got {device} and {value.device}{where}.")
        device = value.device
        if value.dim() == 0 or len(value) == 0 or tasks not in (-1, len(value)):
            tasks = 0
            break
        tasks = len(value)
    if tasks < 1:
        counts = {name: value.shape[0] if value.dim() else 0 for name, value in blocks.items()}
        raise DataError(f"every tensor of `jacobian` must have the same tasks as first dimension; got sizes {counts}.")
    return DenseJacobian(blocks)
