"""Comparisons of tensors and of derivatives that raise `CheckFailure` with the found and the expected values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradhomog.testing.check import CheckFailure

STEP, RTOL, ATOL = 1e-5, 1e-4, 1e-7  # of central differences in float64


def require_close(
    found: Any, expected: Tensor, what: str, *, rtol: float, atol: float,
    cause: Callable[[], str] = lambda: "", **example: Any,
) -> None:  # fmt: skip
    """Raise unless `|found − expected| ≤ atol + rtol · |expected|` elementwise and shape and dtype are equal.

    `cause`: called after a failure; returns the likely cause, empty if it is unknown.
    """
    if not isinstance(found, Tensor):
        raise CheckFailure(f"{what}: expected a tensor, got {type(found).__name__}", **example)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise CheckFailure(
            f"{what}: expected shape {tuple(expected.shape)} and {expected.dtype}, got {tuple(found.shape)} and "
            f"{found.dtype}",
            **example,
        )
    if not bool(((found - expected).abs() - rtol * expected.abs() <= atol).all()):  # NaN too
        likely = f". Likely cause: {text}" if (text := cause()) else ""
        raise CheckFailure(
            f"{what}: off by {_largest_difference(found, expected):.3g} (allowed: {atol:.1g} + {rtol:.1g} · expected)"
            f"{likely}",
            **example, expected=expected, found=found,
        )  # fmt: skip


def require_equal(found: Tensor, expected: Tensor, what: str, **example: Any) -> None:
    """Raise unless two tensors are exactly equal."""
    if not torch.equal(found, expected):
        off = _largest_difference(found, expected) if found.shape == expected.shape else float("nan")
        raise CheckFailure(f"{what}: not exactly equal (off by {off:.3g})", **example)


def _largest_difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).detach().abs().nan_to_num(torch.inf).max())


def central_difference(value: Callable[[float], Tensor]) -> Tensor:
    """The derivative of a float64 function `value(t)` at t = 0 by central differences, detached."""
    return ((value(STEP) - value(-STEP)) / (2 * STEP)).detach()


def derivatives_close(found: float, expected: float, scale: float = 0.0) -> bool:
    """True if a derivative is close to that of central differences.

    `scale` is the size of the terms of which the derivative is the sum.
    """
    return abs(found - expected) <= RTOL * max(abs(expected), 1e-3 * scale) + ATOL
