"""A sentence of the recommendation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recommendation:
    """A sentence of the recommendation, with the code of its rule."""

    code: str
    text: str
