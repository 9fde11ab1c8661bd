"""Compute masks outside the graph of the layer's inputs, also under `torch.func` transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _WithoutGraph(torch.autograd.Function):
    """`compute(inputs)` for independent samples along the first dimension; under vmap the tasks are more samples."""

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
        result: Tensor = _WithoutGraph.apply(together.flatten(0, 1), compute)  # type: ignore[no-untyped-call]
        return result.reshape(*together.shape[:2], *result.shape[1:]), 0


def compute_without_graph(compute: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Return `compute(inputs)` without a graph; the first dimension of both is that of independent samples."""
    result: Tensor = _WithoutGraph.apply(inputs, compute)  # type: ignore[no-untyped-call]
    return result
