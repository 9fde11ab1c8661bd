"""A sentence of the recommendation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recommendation:
    """A sentence of the recommendation, with the code of its rule.

    Attributes:
        methods: expressions of `gradhomog.pipeline` to compare with the plain mean, the first choice first.
    """

    code: str
    text: str
    methods: tuple[str, ...] = ()
