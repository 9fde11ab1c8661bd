"""Suggestions of similar names for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known_names: Iterable[str], template: str = "'{}'") -> str:
    """Return a sentence that suggests the most similar known name, with a leading space; empty if none is similar.

    >>> did_you_mean("Landscpe", ["landscape", "regression"])
    " Did you mean 'landscape'?"
    """
    similar = closest(name, known_names)
    return f" Did you mean {template.format(similar)}?" if similar is not None else ""


def closest(name: object, known_names: Iterable[str]) -> str | None:
    """Return the most similar known name, without regard to capitals; None if none is similar."""
    by_lower = {known.lower(): known for known in known_names}
    matches = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return by_lower[matches[0]] if matches else None
