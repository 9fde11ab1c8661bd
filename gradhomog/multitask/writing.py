"""Gradients into `.grad`, as `backward` puts them there: added to what is there already."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog.multitask.given import as_dense


def accumulate(leaf: Tensor, gradient: Tensor, shared_memory: bool = False) -> None:
    """Add a gradient to a leaf's `.grad`; what is no leaf has none, and its gradient is only returned.

    `shared_memory`: it is as autograd gave it, perhaps to another leaf as well, perhaps one number seen many times.
    """
    if not leaf.is_leaf:
        return
    before = as_dense(leaf.grad)
    if gradient.requires_grad:
        leaf.grad = gradient if before is None else before + gradient
        return
    with torch.no_grad():
        if before is not None:
            leaf.grad = before  # strided now, if it was not
            leaf.grad += gradient
        elif shared_memory or gradient.stride() != leaf.stride() or gradient.dtype != leaf.dtype:
            # Laid out as the leaf is: fused optimizers walk through both side by side.
            leaf.grad = torch.empty_like(leaf, requires_grad=False).copy_(gradient)
        else:
            leaf.grad = gradient
