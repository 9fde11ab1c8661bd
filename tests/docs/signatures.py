"""Signatures as an author writes them: `name(argument: type = default) -> type`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


class _Verbatim:
    """An annotation whose repr is its source text."""

    def __init__(self, annotation: str) -> None:
        self.annotation = annotation

    def __repr__(self) -> str:
        return self.annotation


def signature(function: Callable[..., Any], name: str = "") -> str:
    """The exact signature of a function of a module with `from __future__ import annotations`.

    >>> def weigh(self, rows: Rows, *, mode: int = 1) -> Tensor: ...
    >>> signature(weigh)
    'weigh(self, rows: Rows, *, mode: int = 1) -> Tensor'
    """
    found = inspect.signature(function)
    parameters = [parameter.replace(annotation=_verbatim(parameter.annotation)) for parameter in arguments(function)]
    returns = _verbatim(found.return_annotation)
    return f"{name or function.__name__}{found.replace(parameters=parameters, return_annotation=returns)}"


def arguments(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _verbatim(annotation: Any) -> Any:
    return _Verbatim(annotation) if isinstance(annotation, str) else annotation
