"""Compute a constant to autograd from a tensor, on plain tensors also under vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Outside(torch.autograd.Function):
    """`compute(inputs)`, which treats the samples along the first dimension independently: the tasks that vmap runs at
    once are then more samples."""

    @staticmethod
    def forward(inputs: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        return compute(inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def jvp(ctx: Any, *_: Tensor) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, inputs: Tensor, compute: Callable[[Tensor], Tensor]) -> tuple[Tensor, int]:
        together = inputs.movedim(in_dims[0], 0)
        result: Tensor = _Outside.apply(together.flatten(0, 1), compute)  # type: ignore[no-untyped-call]
        return result.reshape(*together.shape[:2], *result.shape[1:]), 0


def outside(compute: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """`compute(inputs)`, samples along the first dimension of both, in no graph."""
    result: Tensor = _Outside.apply(inputs, compute)  # type: ignore[no-untyped-call]
    return result
