"""Options of a plugin: read them from its factory's signature and annotations, validate and describe them.

A range is an annotation of the library annotated_types, `Annotated[float, Gt(0)]`; a choice is a `Literal`. Floats must
be finite unless an upper bound of infinity is annotated.
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

from gradhomog.error_lists import join_errors
from gradhomog.errors import OptionError
from gradhomog.specs import SIGNATURE_ONLY, HomogenizerSpec, Spec

_LISTS = (list, tuple, Sequence)
_TABLES = (dict, Mapping)
_COMPARISONS: Mapping[type[BaseMetadata], tuple[str, str]] = {
    Ge: ("ge", "≥"), Gt: ("gt", ">"), Le: ("le", "≤"), Lt: ("lt", "<"),
}  # fmt: skip
SCALE = inspect.Parameter("scale", inspect.Parameter.KEYWORD_ONLY, default="mean", annotation=Literal["mean", "paper"])
"""The option that gradhomog adds to a method whose paper uses another scale than the mean of the rows."""


def option_parameters(spec: Spec) -> dict[str, inspect.Parameter]:
    """Return the options of a plugin, in order: its factory's parameters except those that gradhomog supplies.

    The option `scale` is added if the method has a `paper_scale`. Keywords with the annotation
    `**keywords: Unpack[SomeTypedDict]` are options with the names of its keys. Their defaults are those of the
    dataclass that can be passed instead, `together: SomeDataclass | None = None`.
    """
    hidden = SIGNATURE_ONLY[type(spec)]
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(spec.factory).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= _typed_dict_options(spec.factory, name)
        elif name not in hidden and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            found[name] = parameter
    return {**found, "scale": SCALE} if has_paper_scale(spec) else found


def _typed_dict_options(factory: Callable[..., Any], keywords: str) -> dict[str, inspect.Parameter]:
    """Return the options in the annotation of a factory's keywords; none unless it is an unpacked TypedDict."""
    hints = _annotations(factory)
    annotation = hints.get(keywords)
    if typing.get_origin(annotation) is not typing.Unpack:
        return {}
    (options,) = typing.get_args(annotation)
    defaults = {field.name: field.default for hint in hints.values() for field in _dataclass_fields(hint)}
    empty = inspect.Parameter.empty
    return {
        name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, empty))
        for name in typing.get_type_hints(options)
    }


def _dataclass_fields(annotation: Any) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of an annotated dataclass, or of an optional dataclass."""
    candidates = (annotation, *typing.get_args(annotation))
    return next((dataclasses.fields(each) for each in candidates if dataclasses.is_dataclass(each)), ())


def has_paper_scale(spec: Spec) -> bool:
    """True if the factory overrides `paper_scale`; the plugin then has the option `scale`.

    It does so if the paper's direction has another length than the direction of gradhomog.
    """
    if not isinstance(spec, HomogenizerSpec) or not inspect.isclass(spec.factory):
        return False
    from gradhomog.homogenizer import Homogenizer  # imports torch, which listings must not

    return issubclass(spec.factory, Homogenizer) and spec.factory.overrides("paper_scale")


def documentation(spec: Spec) -> str:
    """Return the docstring of a plugin's factory, or an empty string; docstrings of base classes do not count."""
    factory = spec.factory
    while isinstance(factory, functools.partial) and factory.__doc__ == functools.partial.__doc__:
        factory = factory.func
    return (inspect.getdoc(factory) or "") if getattr(factory, "__doc__", None) else ""


def describe(spec: Spec) -> list[str]:
    """Describe the options of a plugin, with defaults and accepted values: `alpha=1.5 (a number ≥ 0)`."""
    hints = _hints(spec)
    described = []
    for name, parameter in option_parameters(spec).items():
        default = "" if parameter.default is parameter.empty else f"={_format_value(parameter.default)}"
        described.append(f"{name}{default} ({describe_type(hints.get(name, Any))})")
    return described


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def bind(spec: Spec, plugin: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check that the factory accepts these options, by name and by annotated type; an integer is a valid float.

    Raises:
        OptionError: a name is unknown (the message lists the options), a required option is missing, or a type is
            wrong.
    """
    parameters, hints = option_parameters(spec), _hints(spec)
    errors = []
    for name, value in options.items():
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            if "options" in parameters:  # a wrapper of another plugin
                hint += f" Options of the wrapped plugin are written options={{'{name}': …}}."
            errors.append(f"{plugin} has no option '{name}'.{hint} Its options: {_known_options(spec)}.")
            continue
        try:
            check_value(plugin, name, value, hints.get(name, Any))
        except OptionError as error:
            errors.append(str(error))
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in options:
            errors.append(f"{plugin} requires the option '{name}'. Its options: {_known_options(spec)}.")
    if errors:
        raise OptionError(join_errors(errors))
    return dict(options)


def _known_options(spec: Spec) -> str:
    return ", ".join(describe(spec)) or "none"


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


def check_attributes(made: object, owner: str) -> None:
    """Validate the attributes of an object that have the names of its constructor's parameters.

    Raises:
        OptionError: as in `check_value`.
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
    """Return the annotated types of a factory's options by name, including those of an unpacked TypedDict.

    Empty if one of them cannot be resolved.
    """
    hints: dict[str, Any] = {}
    for name, annotation in _annotations(factory).items():
        if typing.get_origin(annotation) is typing.Unpack:
            hints |= typing.get_type_hints(typing.get_args(annotation)[0], include_extras=True)
        else:
            hints[name] = annotation
    return hints


def _annotations(factory: Callable[..., Any]) -> dict[str, Any]:
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
        return ("one of " if len(args) > 1 else "") + ", ".join(map(_format_value, args))
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
