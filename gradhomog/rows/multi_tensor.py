"""Operations on many tensors at once: small ones are copied into one matrix, and large ones summed by one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.rows.arithmetic import SMALL_TENSOR

SMALL_COPY = 2**20
"""The largest number of elements that are copied into one matrix: 4 MB in float32, which take a millisecond."""


def group_small(like: Mapping[str, Tensor], tasks: int) -> list[list[str]]:
    """Split parameters into groups whose rows are copied into one matrix, and single ones whose rows are not.

    For a small tensor, starting an operation takes longer than the operation. All parameters of a small network are in
    one group; otherwise those with at most `SMALL_TENSOR` elements, and each of the others is alone.
    """
    tensors = like.values()
    whole = tasks * sum(map(torch.numel, tensors)) <= SMALL_COPY
    one_kind = len({(tensor.dtype, tensor.device) for tensor in tensors}) == 1
    if whole and one_kind and all(map(Tensor.is_contiguous, tensors)):  # the usual case, without the loop
        return [list(like)]
    groups: list[list[str]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[list[str], int]] = {}
    for name, tensor in like.items():
        size, kind = tasks * tensor.numel(), (tensor.dtype, tensor.device)
        if not tensor.is_contiguous() or not (whole or tensor.numel() <= SMALL_TENSOR):
            groups.append([name])
            continue
        names, filled = filling.get(kind, ([], 0))
        if not names or filled + size > SMALL_COPY:
            names, filled = [], 0
            groups.append(names)
        names.append(name)
        filling[kind] = (names, filled + size)
    return groups


def join_rows(gradients: Sequence[Sequence[Tensor | None]], like: Sequence[Tensor]) -> Tensor:
    """Return the rows of several parameters as one matrix `[tasks, elements]`, zero where a gradient is None.

    Args:
        gradients: for each parameter one gradient per task.
        like: for each parameter a tensor of its shape.
    """
    parts = [
        torch.zeros_like(shape, requires_grad=False).view(-1) if part is None else part.reshape(-1)
        for row in zip(*gradients, strict=True)
        for part, shape in zip(row, like, strict=True)
    ]
    return torch.cat(parts).view(len(gradients[0]), -1)


def weighted_sums(rows: Sequence[Sequence[Tensor]], factors: Sequence[float]) -> list[Tensor]:
    """Return Σ_i factors_i · rows_i for each of several parameters, by one multi-tensor operation per row.

    Args:
        rows: for each row one gradient per parameter.
    """
    total = list(torch._foreach_mul(list(rows[0]), factors[0]))
    for row, factor in zip(rows[1:], factors[1:], strict=True):
        torch._foreach_add_(total, list(row), alpha=factor)
    return total
