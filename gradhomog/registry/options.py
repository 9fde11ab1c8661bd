"""Options: bound against a factory's signature and its annotations, and checked for range by whoever owns them."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradhomog.errors import OptionError
from gradhomog.specs import SIGNATURE_ONLY, Spec

_LISTS = (list, tuple, Sequence)
_TABLES = (dict, Mapping)


def accepted(spec: Spec) -> dict[str, inspect.Parameter]:
    """The options of a plugin, in order: its factory's parameters without those that the host supplies."""
    hidden = SIGNATURE_ONLY[type(spec)]
    return {
        name: parameter
        for name, parameter in inspect.signature(spec.factory).parameters.items()
        if name not in hidden and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def documentation(spec: Spec) -> str:
    """The docstring of a plugin's factory; empty if it has none of its own (a class inherits that of its base)."""
    factory = spec.factory
    while isinstance(factory, functools.partial):
        factory = factory.func
    return (inspect.getdoc(factory) or "") if getattr(factory, "__doc__", None) else ""


def describe(spec: Spec) -> list[str]:
    """The options of a plugin as a user writes them, with what each may be: `alpha=1.5 (a number)`."""
    hints = type_hints(spec.factory)
    described = []
    for name, parameter in accepted(spec).items():
        default = "" if parameter.default is parameter.empty else f"={_written(parameter.default)}"
        described.append(f"{name}{default} ({words(hints.get(name, Any))})")
    return described


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def bind(spec: Spec, plugin: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check that the factory accepts these options, by name and by annotated type; integers pass for floats.

    Raises:
        OptionError: unknown name (with the accepted ones and a suggestion), a required one missing, or a wrong type.
    """
    parameters = accepted(spec)
    known = ", ".join(describe(spec)) or "none"
    for name in options:
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            if "options" in parameters:  # of what it wraps
                hint += f" For what it wraps write options={{'{name}': …}}."
            raise OptionError(f"{plugin} has no option '{name}'.{hint} Its options: {known}.")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in options:
            raise OptionError(f"{plugin} needs the option '{name}'. Its options: {known}.")
    hints = type_hints(spec.factory)
    bound = {}
    for name, value in options.items():
        annotation = hints.get(name, Any)
        if not fits(value, annotation):
            raise OptionError(f"{plugin}: `{name}` must be {words(annotation)}; got {value!r}.")
        if not _representable(value, annotation):
            raise OptionError(f"{plugin}: `{name}` must be {words(annotation)} of at most 64 bits; got {value!r}.")
        bound[name] = value
    return bound


def type_hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """The annotated types of a factory's parameters by name; none if one of them cannot be resolved."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    target = factory.__init__ if inspect.isclass(factory) else factory
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}  # an annotation that cannot be resolved promises nothing


def fits(value: Any, annotation: Any) -> bool:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is typing.Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if annotation in (None, type(None)):
        return value is None
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    container = origin or annotation
    if container is tuple and args and args[-1] is not ...:
        return isinstance(value, (list, tuple)) and len(value) == len(args) and all(map(fits, value, args))
    if container in _LISTS:
        return isinstance(value, (list, tuple)) and (not args or all(fits(item, args[0]) for item in value))
    if container in _TABLES:
        if not isinstance(value, Mapping):
            return False
        return not args or all(fits(key, args[0]) and fits(item, args[1]) for key, item in value.items())
    if annotation in (bool, str):
        return isinstance(value, annotation)
    return True  # Any, callables, tensors, classes of the plugin's own: the factory checks


def _representable(value: Any, annotation: Any) -> bool:
    """Whether integers, in lists and tables too, have 64 bits, as generators and tensors take them, or can be float."""
    if isinstance(value, Mapping):
        return all(_representable(item, annotation) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_representable(item, annotation) for item in value)
    if not isinstance(value, int) or -(2**63) <= value < 2**63:
        return True
    return "float" in str(annotation) and abs(value) < 2**1023


def words(annotation: Any) -> str:
    """What a value of an annotated type is called in a message."""
    plain = {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "none", Any: "any"}
    if annotation in plain:
        return plain[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(_written, args))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(words(arg) for arg in args)
    container = origin or annotation
    if container is tuple and args and args[-1] is not ...:
        return f"a list of {len(args)} ({', '.join(map(words, args))})"
    if container in _LISTS:
        return f"a list ({words(args[0])} each)" if args else "a list"
    if container in _TABLES:
        return f"a table by name ({words(args[1])} each)" if args else "a table by name"
    return str(getattr(annotation, "__name__", annotation))
