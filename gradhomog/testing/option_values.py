"""Hypothesis strategies for the values of options, from their annotations."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from hypothesis import strategies as st

from gradhomog.registry.options import accepted, fits, type_hints
from gradhomog.specs import Spec

LARGEST_INTEGER = 20  # numbers of iterations take time
SMALLEST, LARGEST = 1e-3, 1e3  # of numbers that are not 0: outside, exponentials and quotients leave float64


def option_types(spec: Spec) -> Iterator[tuple[str, Any]]:
    """Names of the options and their annotations, `Parameter.empty` for one that has none."""
    hints = type_hints(spec.factory)
    for name, parameter in accepted(spec).items():
        unresolved = isinstance(parameter.annotation, str)
        yield name, hints.get(name, parameter.empty if unresolved else parameter.annotation)


def values_of(annotation: Any) -> st.SearchStrategy[Any] | None:
    """Values that fit an annotation of a number, a truth value, a choice, or one of these or None; else None."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        strategies = [values_of(argument) for argument in arguments]
        return None if None in strategies else st.one_of(*[one for one in strategies if one is not None])
    base = arguments[0] if origin is Annotated else annotation
    if annotation in (bool, type(None)) or origin is Literal:
        return st.from_type(annotation)
    if base not in (int, float):
        return None

    def usable(value: float) -> bool:
        within = abs(value) <= LARGEST_INTEGER if base is int else value == 0 or SMALLEST <= abs(value) <= LARGEST
        return within and fits(value, annotation)

    return st.from_type(annotation).filter(usable)
