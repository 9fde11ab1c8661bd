"""Square root with derivative zero at zero."""

from __future__ import annotations

import torch
from torch import Tensor


def safe_sqrt(squares: Tensor) -> Tensor:
    """√x where x > 0, else 0, with derivative 0; the derivative of `torch.sqrt` at zero is infinite and leads to NaN.

    Args:
        squares: any shape and floating dtype. Values below zero, caused by rounding, count as zero; NaN stays NaN.

    Returns:
        Roots of the same shape, differentiable any number of times.

    >>> x = torch.tensor([4.0, 0.0], requires_grad=True)
    >>> torch.autograd.grad(safe_sqrt(x).sum(), x)
    (tensor([0.2500, 0.0000]),)
    """
    if not torch.is_grad_enabled():
        return squares.clamp_min(0).sqrt()
    zero = squares <= 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())
