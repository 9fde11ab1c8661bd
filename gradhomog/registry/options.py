"""Options of a plugin: read from its factory's signature and annotations, validated and described by the host.

A range is an annotation with the library annotated_types, `Annotated[float, Gt(0)]`; a choice is a `Literal`. Floats
must be finite unless an upper bound of infinity is annotated.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen

from gradhomog.errors import OptionError
from gradhomog.faults import join_faults
from gradhomog.specs import SIGNATURE_ONLY, HomogenizerSpec, Spec

_LISTS = (list, tuple, Sequence)
_TABLES = (dict, Mapping)
_COMPARISONS: Mapping[type[BaseMetadata], tuple[str, str]] = {
    Ge: ("ge", "≥"), Gt: ("gt", ">"), Le: ("le", "≤"), Lt: ("lt", "<"),
}  # fmt: skip
SCALE = inspect.Parameter("scale", inspect.Parameter.KEYWORD_ONLY, default="mean", annotation=Literal["mean", "paper"])
"""The option that the host adds to a method whose paper has another scale."""


def accepted(spec: Spec) -> dict[str, inspect.Parameter]:
    """The options of a plugin, in order: its factory's parameters without those that the host supplies, and `scale`.

    Keywords that are annotated `**keywords: Unpack[SomeTypedDict]` are options by the names of its keys. Their defaults
    are those of the dataclass that can be given in their place, `together: SomeDataclass | None = None`.
    """
    hidden = SIGNATURE_ONLY[type(spec)]
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(spec.factory).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= _unpacked(spec.factory, name)
        elif name not in hidden and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            found[name] = parameter
    return {**found, "scale": SCALE} if has_paper_scale(spec) else found


def _unpacked(factory: Callable[..., Any], keywords: str) -> dict[str, inspect.Parameter]:
    """The options that a factory's keywords stand for; none unless their annotation is an unpacked TypedDict."""
    hints = _annotations(factory)
    annotation = hints.get(keywords)
    if typing.get_origin(annotation) is not typing.Unpack:
        return {}
    (options,) = typing.get_args(annotation)
    given = {field.name: field.default for hint in hints.values() for field in _dataclass_fields(hint)}
    return {
        name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=given.get(name, inspect.Parameter.empty))
        for name in typing.get_type_hints(options)
    }


def _dataclass_fields(annotation: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The fields of an annotated dataclass, or of one that may also be None."""
    candidates = (annotation, *typing.get_args(annotation))
    return next((dataclasses.fields(each) for each in candidates if dataclasses.is_dataclass(each)), ())


def has_paper_scale(spec: Spec) -> bool:
    """Whether the paper's scale differs from the mean, so that the host accepts the option `scale`."""
    if not isinstance(spec, HomogenizerSpec) or not inspect.isclass(spec.factory):
        return False
    from gradhomog.homogenizer import Homogenizer  # imports torch, which listings do without

    return issubclass(spec.factory, Homogenizer) and spec.factory.overrides("paper_scale")


def documentation(spec: Spec) -> str:
    """The docstring of a plugin's factory; empty if it has none of its own (a class inherits that of its base)."""
    factory = spec.factory
    while isinstance(factory, functools.partial) and factory.__doc__ == functools.partial.__doc__:
        factory = factory.func
    return (inspect.getdoc(factory) or "") if getattr(factory, "__doc__", None) else ""


def describe(spec: Spec) -> list[str]:
    """The options of a plugin as a user writes them, with the values that each accepts: `alpha=1.5 (a number ≥ 0)`."""
    hints = _hints(spec)
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
        OptionError: unknown names (with the accepted ones and suggestions), required ones missing, or wrong types.
    """
    parameters = accepted(spec)
    known = ", ".join(describe(spec)) or "none"
    hints = _hints(spec)
    faults = []
    for name, value in options.items():
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            if "options" in parameters:  # of what it wraps
                hint += f" For what it wraps write options={{'{name}': …}}."
            faults.append(f"{plugin} has no option '{name}'.{hint} Its options: {known}.")
            continue
        try:
            check_value(plugin, name, value, hints.get(name, Any))
        except OptionError as error:
            faults.append(str(error))
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in options:
            faults.append(f"{plugin} needs the option '{name}'. Its options: {known}.")
    if faults:
        raise OptionError(join_faults(faults))
    return dict(options)


def check_value(owner: str, name: str, value: Any, annotation: Any) -> None:
    """Validate one option against its annotation.

    Raises:
        OptionError: it names the option, the accepted values and the value.
    """
    if not fits(value, annotation):
        raise OptionError(f"{owner}: `{name}` must be {words(annotation)}; got {value!r}.")
    if not _representable(value, annotation):
        limit = "within float64" if "float" in str(annotation) else "of at most 64 bits"
        raise OptionError(f"{owner}: `{name}` must be {words(annotation)} {limit}; got {value!r}.")


def check_attributes(made: object, owner: str) -> None:
    """Validate an object whose constructor stored each parameter in the attribute of the same name.

    Raises:
        OptionError: as of `check_value`.
    """
    hints, attributes = _constructor_hints(type(made)), vars(made)  # type: ignore[arg-type]  # a class is hashable
    for name, annotation in hints.items():
        if name in attributes:
            check_value(owner, name, attributes[name], annotation)


@functools.cache
def _constructor_hints(factory: type[Any]) -> dict[str, Any]:
    hints = type_hints(factory)
    return {name: hints[name] for name in inspect.signature(factory).parameters if name in hints}


def _hints(spec: Spec) -> dict[str, Any]:
    hints = type_hints(spec.factory)
    return {**hints, "scale": SCALE.annotation} if has_paper_scale(spec) else hints


def type_hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """The annotated types of a factory's options by name, those of an unpacked TypedDict among them.

    None if one of them cannot be resolved.
    """
    hints: dict[str, Any] = {}
    for name, annotation in _annotations(factory).items():
        if typing.get_origin(annotation) is typing.Unpack:
            hints |= typing.get_type_hints(typing.get_args(annotation)[0], include_extras=True)
        else:
            hints[name] = annotation
    return hints


def _annotations(factory: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of the parameters of a class's constructor, a function, or what a partial or wrapper calls."""
    while isinstance(factory, functools.partial) or hasattr(factory, "__wrapped__"):
        factory = factory.func if isinstance(factory, functools.partial) else factory.__wrapped__
    target = factory.__init__ if inspect.isclass(factory) else factory
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}  # an annotation that cannot be resolved restricts nothing


def fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of an annotated type and within its range."""
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
    return True  # Any, callables, tensors, classes of the plugin's own


def _bounds(metadata: Sequence[Any]) -> Iterator[BaseMetadata]:
    """Single bounds of annotations; `Interval` and `Len` are groups of them."""
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
    return True  # of another library


def _representable(value: Any, annotation: Any) -> bool:
    """Whether integers, in lists and tables too, have 64 bits, as generators and tensors take them, or can be float."""
    if isinstance(value, Mapping):
        return all(_representable(item, annotation) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_representable(item, annotation) for item in value)
    if not isinstance(value, int) or -(2**63) <= value < 2**63:
        return True
    return "float" in str(annotation) and abs(value) < 2**1023


def _range_words(bound: BaseMetadata) -> str:
    if isinstance(bound, MinLen):
        return f"with at least {bound.min_length} entr{'y' if bound.min_length == 1 else 'ies'}"
    if isinstance(bound, MaxLen):
        return f"with at most {bound.max_length} entries"
    for kind, (name, symbol) in _COMPARISONS.items():
        if isinstance(bound, kind):
            return f"{symbol} {getattr(bound, name):g}"
    return str(bound)


def words(annotation: Any) -> str:
    """The accepted values of an annotated type, in the words of a message."""
    plain = {int: "an integer", float: "a number", bool: "true or false", str: "a text", type(None): "none", Any: "any"}
    if annotation in plain:
        return plain[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        ranges = " and ".join(_range_words(bound) for bound in _bounds(args[1:]))
        return f"{words(args[0])} {ranges}".strip()
    if origin is Literal:
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
