"""Values of options as TorchJD takes them: lists of numbers become tensors, tables become projectors."""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor


class Misfit(Exception):
    """A value is of none of the types that an option can have."""


def hints(kind: type) -> dict[str, Any]:
    """The types of the arguments that a class is made with; none where they cannot be resolved."""
    try:
        return typing.get_type_hints(vars(kind)["__init__"])
    except (KeyError, NameError):
        return {}


def convert(value: Any, annotation: Any, projector: Callable[[Mapping[str, Any]], Any]) -> Any:
    """A value as an option of that type takes it. Tensors are float64, as what the bridge computes with.

    Args:
        projector: makes a `DualConeProjector` from a table of options.

    Raises:
        Misfit: it is of no type that the option can have.
    """
    for kind in _alternatives(annotation):
        if kind is float and _is_number(value):
            return float(value)
        if kind is Tensor and isinstance(value, (list, tuple)) and all(map(_is_number, value)):
            return torch.tensor(value, dtype=torch.float64)
        if _is_projector(kind) and isinstance(value, Mapping):
            return projector(value)
        if _fits(value, kind):
            return value
    raise Misfit


def words(annotation: Any) -> str:
    """What a value of that type is called in a message."""
    return " or ".join(map(_word, _alternatives(annotation)))


def _fits(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    if kind in (int, float):
        return _is_number(value) and isinstance(value, kind)
    return callable(value) if kind is collections.abc.Callable else isinstance(value, kind)


def _word(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(kind)))
    if _is_projector(kind):
        return "a table of options of QuadprogProjector"
    plain = {float: "a number", int: "an integer", type(None): "none", Tensor: "a list of numbers", Any: "any"}
    return plain.get(kind) or ("a function" if kind is collections.abc.Callable else kind.__name__)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if union else (annotation,)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_projector(kind: Any) -> bool:
    return getattr(kind, "__name__", "") == "DualConeProjector"
