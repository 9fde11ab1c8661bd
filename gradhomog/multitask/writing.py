"""Gradients into `.grad`, as `backward` puts them there: added to what is there already."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def accumulate(leaf: Tensor, gradient: Tensor, shared_memory: bool = False) -> None:
    """Add a gradient to a leaf's `.grad`; what is no leaf has none, and its gradient is only returned.

    `shared_memory`: it is as autograd gave it, perhaps to another leaf as well, perhaps one number seen many times.
    """
    if not leaf.is_leaf:
        return
    if leaf.grad is None:
        leaf.grad = gradient.clone() if shared_memory else gradient
    elif gradient.requires_grad:
        leaf.grad = leaf.grad + gradient
    else:
        with torch.no_grad():
            leaf.grad += gradient


def accumulate_all(pairs: Iterable[tuple[Tensor, Tensor | None]]) -> None:
    """`accumulate` for each pair that has a gradient."""
    for leaf, gradient in pairs:
        if gradient is not None:
            accumulate(leaf, gradient, shared_memory=True)
