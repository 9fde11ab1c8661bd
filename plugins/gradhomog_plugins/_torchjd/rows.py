"""Rows as the one matrix that TorchJD takes, and its vector as rows again."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from gradhomog import Rows


def concatenated(rows: Rows) -> Tensor:
    """The rows as one matrix `[tasks, params]`; of a dict of several tensors a copy, in their widest dtype."""
    if isinstance(rows, Tensor):
        return rows
    flat = [value.flatten(1) if value.dim() > 1 else value[:, None] for value in rows.values()]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)


def widest(rows: Rows) -> torch.dtype:
    """The dtype of the rows; of a dict of several, the one that holds them all."""
    if isinstance(rows, Tensor):
        return rows.dtype
    return functools.reduce(torch.promote_types, (value.dtype for value in rows.values()))


def repeated(vector: Tensor, like: Rows) -> Rows:
    """Rows of the structure, shapes and dtypes of others, each of them the vector; the memory of one row."""
    if isinstance(like, Tensor):
        return vector.to(like.dtype).expand_as(like)
    sizes = [math.prod(value.shape[1:]) for value in like.values()]
    parts = torch.split(vector, sizes)
    return {
        name: part.to(value.dtype).reshape(value.shape[1:]).expand_as(value)
        for (name, value), part in zip(like.items(), parts, strict=True)
    }
