"""Comparisons that fail with what was found beside what was expected."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradhomog.testing.checking import CheckFailure


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
    off = (found - expected).abs() - rtol * expected.abs()
    if not bool((off <= atol).all()):  # NaN too
        worst = float((found - expected).detach().abs().nan_to_num(torch.inf).max())
        raise CheckFailure(
            f"{what}: off by {worst:.3g} (allowed: {atol:.1g} + {rtol:.1g} · expected)",
            **example, expected=expected, found=found,
        )  # fmt: skip


def same(found: Tensor, expected: Tensor, what: str, **example: Any) -> None:
    """Raise unless two tensors are the same, bit for bit."""
    if not torch.equal(found, expected):
        worst = float((found - expected).detach().abs().max()) if found.shape == expected.shape else float("nan")
        raise CheckFailure(f"{what}: not the same, bit for bit (off by {worst:.3g})", **example)
