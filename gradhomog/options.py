"""Options: bound against a factory's signature and its annotations, and checked for range by whoever owns them."""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from gradhomog.errors import OptionError
from gradhomog.specs import SIGNATURE_ONLY, Spec


def accepted(spec: Spec) -> dict[str, inspect.Parameter]:
    """The options of a plugin, in order: its factory's parameters without those that the host supplies."""
    hidden = SIGNATURE_ONLY[type(spec)]
    return {
        name: parameter
        for name, parameter in inspect.signature(spec.factory).parameters.items()
        if name not in hidden and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def describe(parameter: inspect.Parameter) -> str:
    """`alpha: float = 1.5`, as `gradhomog show` prints it."""
    return str(parameter).replace("'", '"') if parameter.annotation is inspect.Parameter.empty else str(parameter)


def bind(spec: Spec, plugin: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check that the factory accepts these options, by name and by annotated type; integers pass for floats.

    Raises:
        OptionError: unknown name (with the accepted ones and a suggestion), a required one missing, or a wrong type.
    """
    parameters = accepted(spec)
    known = ", ".join(describe(parameter) for parameter in parameters.values()) or "none"
    for name in options:
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise OptionError(f"{plugin} has no option '{name}'.{hint} Its options: {known}.")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in options:
            raise OptionError(f"{plugin} needs the option '{name}'. Its options: {known}.")
    annotations = _annotations(spec.factory)
    bound = {}
    for name, value in options.items():
        annotation = annotations.get(name, Any)
        if not _fits(value, annotation):
            raise OptionError(f"{plugin}: `{name}` must be {_words(annotation)}; got {value!r}.")
        bound[name] = value
    return bound


def check(condition: bool, name: str, expected: str, found: object) -> None:
    """Raise `OptionError` naming an option, what it must be and what it was, unless `condition` holds."""
    if not condition:
        raise OptionError(f"`{name}` must be {expected}; got {found!r}.")


def _annotations(factory: Callable[..., Any]) -> dict[str, Any]:
    target = factory.__init__ if inspect.isclass(factory) else factory
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}  # an annotation that cannot be resolved promises nothing


def _fits(value: Any, annotation: Any) -> bool:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin is typing.Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if annotation in (None, type(None)):
        return value is None
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin in (list, tuple, typing.get_origin(typing.Sequence[int])):
        return isinstance(value, (list, tuple)) and (not args or all(_fits(item, args[0]) for item in value))
    if origin in (dict, typing.get_origin(typing.Mapping[str, int])):
        return isinstance(value, Mapping) and all(_fits(item, args[1]) for item in value.values())
    if annotation in (bool, str):
        return isinstance(value, annotation)
    return True  # Any, callables, tensors, classes of the plugin's own: the factory checks


def _words(annotation: Any) -> str:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return {int: "an integer", float: "a number", bool: "true or false", str: "a text"}.get(
            annotation, annotation.__name__
        )
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("none" if arg is type(None) else _words(arg) for arg in args)
    return str(annotation).replace("collections.abc.", "").replace("typing.", "")
