"""Comparisons of tensors, derivatives and errors that raise `CheckFailure` with the found and the expected values."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradhomog.learners.learner import Learner
from gradhomog.testing.check_results import CheckFailure

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
        raise CheckFailure(
            f"{what}: off by {_largest_difference(found, expected):.3g} (allowed: {atol:.1g} + {rtol:.1g} · expected)"
            f"{_likely(cause)}",
            **example, expected=expected, found=found,
        )  # fmt: skip


def require_tensor(what: str, value: Any, dtype: torch.dtype | None, shape: tuple[int, ...] | None = None) -> None:
    """Raise unless a value is a finite tensor of this shape and dtype that does not require grad."""
    if not isinstance(value, Tensor):
        raise CheckFailure(f"{what} is a {type(value).__name__}; expected a tensor")
    if shape is not None and value.shape != shape:
        raise CheckFailure(f"{what} has the shape {tuple(value.shape)}; expected {shape}")
    if dtype is not None and value.dtype != dtype:
        raise CheckFailure(f"{what} has the dtype {value.dtype}; expected {dtype}")
    if value.requires_grad:
        raise CheckFailure(f"{what} requires grad and keeps the task's graph in memory: detach it")
    if not bool(torch.isfinite(value).all()):
        raise CheckFailure(f"{what} is not finite", found=value)


def require_equal(found: Tensor, expected: Tensor, what: str, **example: Any) -> None:
    """Raise unless two tensors are exactly equal."""
    if not torch.equal(found, expected):
        off = _largest_difference(found, expected) if found.shape == expected.shape else float("nan")
        raise CheckFailure(f"{what}: not exactly equal (off by {off:.3g})", **example)


def require_all_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    """Raise unless all tensors of `expected` are exactly equal to those in `found`; `{}` in `what` is the name."""
    for name, value in expected.items():
        require_equal(found[name], value, what.replace("{}", name))


def _likely(cause: Callable[[], str]) -> str:
    return f". Likely cause: {text}" if (text := cause()) else ""


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


def require_derivative(
    found: float, expected: float, what: str, scale: float = 0.0, cause: Callable[[], str] = lambda: ""
) -> None:
    """Raise unless `derivatives_close`; `what` ends where the number follows, and `cause` is as in `require_close`."""
    if not derivatives_close(found, expected, scale):
        raise CheckFailure(f"{what} {found:.6g}; finite differences give {expected:.6g}{_likely(cause)}")


def require_exact_rows(
    learner: Learner, rows: Mapping[str, Tensor | None], losses: Callable[[], Tensor], with_learner: str, loss: str
) -> None:
    """Raise unless rows equal central differences of the losses, along a random direction in each parameter."""
    generator = torch.Generator().manual_seed(2)
    for name, parameter in learner.named_parameters().items():
        along = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        start, block, derivatives = parameter.detach().clone(), rows[name], []
        for step in (STEP, -STEP):
            parameter.data.copy_(start + step * along)
            derivatives.append(losses().detach() / (2 * STEP))
        parameter.data.copy_(start)
        what = f"the row of `{name}`{with_learner} is not the derivative of the {loss}: along a random direction it is"
        for slot, expected in enumerate((derivatives[0] - derivatives[1]).tolist()):
            require_derivative(0.0 if block is None else float((block[slot] * along).sum()), expected, what)


def error_of(call: Callable[[], object], *kinds: type[Exception]) -> Exception | None:
    """Return the error of one of these types that the call raises; None if it returns."""
    try:
        call()
    except kinds as error:
        return error
    return None
