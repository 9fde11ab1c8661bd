"""Hypothesis strategies that draw values of options from their annotations."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, Literal

from hypothesis import strategies as st

from gradhomog.registry.annotated_values import fits

LARGEST_INTEGER = 20  # an integer may be a number of iterations, which take time
SMALLEST, LARGEST = 1e-3, 1e3  # bounds of nonzero numbers: beyond them exponentials and quotients may overflow


def values_of(annotation: Any) -> st.SearchStrategy[Any] | None:
    """Return a strategy for an annotation of numbers, booleans, `Literal`s, or a union of these and None; else None."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        strategies = [values_of(argument) for argument in arguments]
        return None if None in strategies else st.one_of(*[strategy for strategy in strategies if strategy is not None])
    base = arguments[0] if origin is Annotated else annotation
    if annotation in (bool, type(None)) or origin is Literal:
        return st.from_type(annotation)
    if base not in (int, float):
        return None

    def usable(value: float) -> bool:
        within = abs(value) <= LARGEST_INTEGER if base is int else value == 0 or SMALLEST <= abs(value) <= LARGEST
        return within and fits(value, annotation)

    return st.from_type(annotation).filter(usable)
