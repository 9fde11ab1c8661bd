"""Correct second derivatives of attention and weight normalization."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import _WeightNorm


@contextmanager
def enable_second_derivatives(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Context in which attention and weight normalization have correct second derivatives.

    Attention: the fast kernels have no second derivative; the math kernel has one. Weight normalization: the second
    derivative of the fused kernel is wrong without an error (PyTorch 2.13, docs/decisions/0013); w = g v/‖v‖ is
    computed with elementary operations instead.
    """
    layers = {part for module in modules for part in module.modules() if isinstance(part, _WeightNorm)}
    try:
        for layer in layers:
            layer.forward = _weight_norm_of(layer)  # type: ignore[method-assign]
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for layer in layers:
            layer.__dict__.pop("forward", None)


def _weight_norm_of(layer: _WeightNorm) -> Callable[[Tensor, Tensor], Tensor]:
    def forward(weight_g: Tensor, weight_v: Tensor) -> Tensor:
        kept = None if layer.dim == -1 else layer.dim % weight_v.dim()
        others = [dim for dim in range(weight_v.dim()) if dim != kept]
        length: Tensor = torch.linalg.vector_norm(weight_v, dim=others, keepdim=True)
        return weight_v * (weight_g / length)

    return forward
