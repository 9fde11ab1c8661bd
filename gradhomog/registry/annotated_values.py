"""Values and their annotated types: validate and describe values, and validate the arguments of constructors.

A range is an annotation of the library annotated_types, `Annotated[float, Gt(0)]`; a choice is a `Literal`. Floats must
be finite unless an upper bound of infinity is annotated.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen

from gradhomog.errors import OptionError

_LISTS = (list, tuple, Sequence)
_TABLES = (dict, Mapping)
_COMPARISONS: Mapping[type[BaseMetadata], tuple[str, str]] = {
    Ge: ("ge", "≥"), Gt: ("gt", ">"), Le: ("le", "≤"), Lt: ("lt", "<"),
}  # fmt: skip


class ValidatedConstructor:
    """A base class that validates the arguments of its constructor against their annotations.

    Raises:
        OptionError: as in `check_value`.
    """

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        names, hints = _constructor(cls)  # type: ignore[arg-type]  # a class is hashable
        for name, value in (*zip(names, args, strict=False), *keywords.items()):
            if name in hints:
                check_value(cls.__name__, name, value, hints[name])
        return super().__new__(cls)


@functools.cache
def _constructor(cls: type) -> tuple[list[str], dict[str, Any]]:
    """Return the names of a constructor's parameters in order, and the annotated types of those that have one.

    Untyped keywords, which a subclass passes on, have the types of its base classes.
    """
    hints: dict[str, Any] = {}
    for base in reversed([base for base in cls.__mro__ if "__init__" in vars(base)]):
        own, annotations = inspect.signature(vars(base)["__init__"]).parameters, annotations_of(base)
        untyped = {name for name, one in own.items() if one.kind is one.VAR_KEYWORD}
        untyped -= {name for name in untyped if typing.get_origin(annotations.get(name)) is typing.Unpack}
        inherited = {name: hint for name, hint in hints.items() if name not in own} if untyped else {}
        hints = inherited | type_hints(base)
    return list(inspect.signature(cls).parameters), hints


def check_value(owner: str, name: str, value: Any, annotation: Any) -> None:
    """Validate one option against its annotation.

    Raises:
        OptionError: the message names the option, the accepted values and the value.
    """
    if not fits(value, annotation):
        raise OptionError(f"{owner}: `{name}` must be {describe_type(annotation)}; got {value!r}.")
    if not _representable(value, annotation):
        limit = "within float64" if "float" in str(annotation) else "of at most 64 bits"
        raise OptionError(f"{owner}: `{name}` must be {describe_type(annotation)} {limit}; got {value!r}.")


def type_hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotated types of a factory's options by name, including those of an unpacked TypedDict.

    Empty if one of them cannot be resolved.
    """
    hints: dict[str, Any] = {}
    for name, annotation in annotations_of(factory).items():
        if typing.get_origin(annotation) is typing.Unpack:
            hints |= typing.get_type_hints(typing.get_args(annotation)[0], include_extras=True)
        else:
            hints[name] = annotation
    return hints


def annotations_of(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotated types of the parameters of a class or function, or of the target of a partial or wrapper."""
    while isinstance(factory, functools.partial) or hasattr(factory, "__wrapped__"):
        factory = factory.func if isinstance(factory, functools.partial) else factory.__wrapped__
    target = factory.__init__ if inspect.isclass(factory) else factory
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}  # an annotation that cannot be resolved restricts nothing


def fits(value: Any, annotation: Any) -> bool:
    """True if a value has an annotated type and is within its range."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        bounds = list(_bounds(args[1:]))
        if args[0] is float and isinstance(value, float) and value == math.inf:
            return Le(math.inf) in bounds
        return fits(value, args[0]) and all(_satisfies(value, bound) for bound in bounds)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if annotation in (None, type(None)):
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if typing.is_typeddict(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        required = annotation.__required_keys__
        return isinstance(value, Mapping) and all(
            fits(value[key], hint) if key in value else key not in required for key, hint in hints.items()
        )
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
    return True  # Any, callables, tensors, classes of the plugin


def _bounds(metadata: Sequence[Any]) -> Iterator[BaseMetadata]:
    """Yield each bound of an annotation; groups of bounds (`Interval`, `Len`) are split into their bounds."""
    for item in metadata:
        if isinstance(item, GroupedMetadata):
            yield from _bounds(list(item))
        elif isinstance(item, BaseMetadata):
            yield item


def _satisfies(value: Any, bound: BaseMetadata) -> bool:
    if isinstance(bound, (MinLen, MaxLen)):
        size = len(value)
        return size >= bound.min_length if isinstance(bound, MinLen) else size <= bound.max_length
    if isinstance(bound, (Gt, Ge)):
        limit: Any = bound.gt if isinstance(bound, Gt) else bound.ge
        return bool(value > limit if isinstance(bound, Gt) else value >= limit)
    if isinstance(bound, (Lt, Le)):
        limit = bound.lt if isinstance(bound, Lt) else bound.le
        return bool(value < limit if isinstance(bound, Lt) else value <= limit)
    return True  # metadata of another library


def _representable(value: Any, annotation: Any) -> bool:
    """True if all integers, also in lists and tables, fit into 64 bits, or into float64 if floats are annotated."""
    if isinstance(value, Mapping):
        return all(_representable(item, annotation) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_representable(item, annotation) for item in value)
    if not isinstance(value, int) or -(2**63) <= value < 2**63:
        return True
    return "float" in str(annotation) and abs(value) < 2**1023


def _describe_bound(bound: BaseMetadata) -> str:
    if isinstance(bound, MinLen):
        return f"with at least {bound.min_length} entr{'y' if bound.min_length == 1 else 'ies'}"
    if isinstance(bound, MaxLen):
        return f"with at most {bound.max_length} entries"
    for kind, (name, symbol) in _COMPARISONS.items():
        if isinstance(bound, kind):
            return f"{symbol} {getattr(bound, name):g}"
    return str(bound)


def describe_type(annotation: Any) -> str:
    """Describe the accepted values of an annotated type for a message."""
    plain = {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "none", Any: "any"}
    if annotation in plain:
        return plain[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        ranges = " and ".join(_describe_bound(bound) for bound in _bounds(args[1:]))
        return f"{describe_type(args[0])} {ranges}".strip()
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(format_value, args))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe_type(arg) for arg in args)
    container = origin or annotation
    if container is tuple and args and args[-1] is not ...:
        return f"a list of {len(args)} ({', '.join(map(describe_type, args))})"
    if container in _LISTS:
        return f"a list ({describe_type(args[0])} each)" if args else "a list"
    if container in _TABLES:
        return f"a table by name ({describe_type(args[1])} each)" if args else "a table by name"
    return str(getattr(annotation, "__name__", annotation))


def format_value(value: Any) -> str:
    """Return a value as in the text form of a pipeline."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
