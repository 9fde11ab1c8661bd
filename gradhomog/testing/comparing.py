"""Comparisons of tensors and derivatives; a failure shows the value found beside the expected one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradhomog.testing.checking import CheckFailure

STEP, RTOL, ATOL = 1e-5, 1e-4, 1e-7  # of central differences in float64


def agree(found: Any, expected: Tensor, what: str, *, rtol: float, atol: float, **example: Any) -> None:
    """Raise unless `|found − expected| ≤ atol + rtol · |expected|` everywhere, and shape and dtype are the same."""
    if not isinstance(found, Tensor):
        raise CheckFailure(f"{what}: a {type(found).__name__} where a tensor was expected", **example)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise CheckFailure(
            f"{what}: shape {tuple(found.shape)} and {found.dtype} where {tuple(expected.shape)} and {expected.dtype} "
            "were expected",
            **example,
        )
    if not bool(((found - expected).abs() - rtol * expected.abs() <= atol).all()):  # NaN too
        raise CheckFailure(
            f"{what}: off by {_largest_difference(found, expected):.3g} (allowed: {atol:.1g} + {rtol:.1g} · expected)",
            **example, expected=expected, found=found,
        )  # fmt: skip


def same(found: Tensor, expected: Tensor, what: str, **example: Any) -> None:
    """Raise unless two tensors are the same, bit for bit."""
    if not torch.equal(found, expected):
        off = _largest_difference(found, expected) if found.shape == expected.shape else float("nan")
        raise CheckFailure(f"{what}: not the same, bit for bit (off by {off:.3g})", **example)


def _largest_difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).detach().abs().nan_to_num(torch.inf).max())


def central_difference(value: Callable[[float], Tensor]) -> Tensor:
    """The derivative of `value(t)` at 0, detached: of a float64 function along a direction."""
    return ((value(STEP) - value(-STEP)) / (2 * STEP)).detach()


def derivatives_agree(found: float, expected: float, scale: float = 0.0) -> bool:
    """Whether a derivative is that of central differences; `scale` is the size of the terms that it is the sum of."""
    return abs(found - expected) <= RTOL * max(abs(expected), 1e-3 * scale) + ATOL
