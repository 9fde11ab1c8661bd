"""What is computed of a tensor outside every transformation: a constant to autograd, plain tensors under vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Outside(torch.autograd.Function):
    """`compute(inputs)`, whose first dimension is that of the inputs and goes over samples that know nothing of each
    other: so the tasks that vmap runs at once are simply more samples."""

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
