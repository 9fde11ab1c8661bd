"""Validate options of domains. Error messages contain the option, the expected and the actual value."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gradhomog.errors import OptionError
from gradhomog.experiments.config.suggestions import did_you_mean


def integer(name: str, value: object, *, low: int, high: int | None = None) -> int:
    """Return `value` if it is an integer in low..high, else raise `OptionError`."""
    span = f">= {low}" if high is None else f"in {low}..{high}"
    # `bool` is a subclass of `int`, but `instances=true` in a run file is a mistake.
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise OptionError(f"`{name}` must be an integer {span}; got {value!r}.")
    return value


def number(name: str, value: object, *, low: float, high: float = math.inf) -> float:
    """Return `value` as a float if it is a finite number in [low, high], else raise `OptionError`."""
    span = f">= {low:g}" if math.isinf(high) else f"in [{low:g}, {high:g}]"
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type, operator]
        raise OptionError(f"`{name}` must be a number {span}; got {value!r}.")
    return float(value)  # type: ignore[arg-type]


def variant(domain: str, value: str, known: Iterable[str]) -> str:
    """Return `value` if it is one of the known variants of a domain, else raise `OptionError` with a suggestion."""
    names = list(known)
    if value in names:
        return value
    hint = did_you_mean(value, names, f"`{domain}:{{}}`")
    actual = f"got {value!r}" if value else "got nothing after the name"
    raise OptionError(f"`{domain}` needs one of the variants {', '.join(names)}; {actual}.{hint}")
