"""Functions of a Gramian that run in NumPy where no graph is required, and in PyTorch otherwise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def numpy_without_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Convert `function(xp, gramian, …)` to a function of tensors that returns a tensor or a tuple of tensors.

    `xp` is `torch` if the Gramian has a graph; otherwise it is `numpy`, and all tensors are passed as arrays: a small
    operation takes one microsecond there instead of two to five. The function uses names that both modules share.
    """

    @functools.wraps(function)
    def call(gramian: Tensor, *arguments: Any, **options: Any) -> Any:
        if gramian.requires_grad and torch.is_grad_enabled():
            return function(torch, gramian, *arguments, **options)
        arrays = [value.detach().numpy() if isinstance(value, Tensor) else value for value in (gramian, *arguments)]
        with np.errstate(all="ignore"):
            found = function(np, *arrays, **options)
        return tuple(map(torch.as_tensor, found)) if isinstance(found, tuple) else torch.as_tensor(found)

    return call


def pseudo_inverse(xp: Any, matrix: Any, tolerance: float) -> Any:
    """Return the pseudo-inverse of a positive semi-definite matrix; eigenvalues up to `tolerance` count as zero.

    Differentiable where the rank does not change, at equal eigenvalues too.
    """
    if xp is torch:
        return torch.linalg.pinv(matrix, atol=tolerance, rtol=0.0, hermitian=True)
    values, vectors = np.linalg.eigh(matrix)
    values[values <= tolerance] = np.inf
    return (vectors / values) @ vectors.T
