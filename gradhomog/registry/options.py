"""Options of plugins, constructors, domains, problems and run files: validated and described by their annotated types.

A range is an annotation of the library annotated_types, `Annotated[float, Gt(0)]`; a choice is a `Literal`. Floats must
be finite unless an upper bound of infinity is annotated.
"""

import functools
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, cast

from annotated_types import DocInfo, Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen

from gradhomog.errors import ConfigError, OptionError, did_you_mean, join_errors
from gradhomog.registry.expression import render_value
from gradhomog.registry.specs import HomogenizerSpec, Spec

_LISTS = (list, tuple, range)

Function = TypeVar("Function", bound=Callable[..., Any])


class ValidatedConstructor:
    """A base class that validates the arguments of its constructor against their annotations.

    Raises:
        OptionError: the message names the class, the option, the accepted values and the value.
    """

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        _validate_arguments(cls, args, keywords)
        return super().__new__(cls)


def validated(function: Function) -> Function:
    """Decorate a function so that it validates its arguments as `ValidatedConstructor` does."""

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        _validate_arguments(function, args, keywords)
        return function(*args, **keywords)

    return cast(Function, call)


def _validate_arguments(target: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    names, hints, is_closed = _parameters(target)
    if is_closed and (unknown := [name for name in keywords if name not in hints and name not in names]):
        raise TypeError(f"{target.__name__}() got an unexpected keyword argument {unknown[0]!r}")
    for name, value in (*zip(names, args, strict=False), *keywords.items()):
        if name in hints and (error := describe_mismatch(name, value, hints[name])):
            raise OptionError(f"{target.__name__}: {error}")


@functools.cache
def _parameters(target: Callable[..., Any]) -> tuple[list[str], dict[str, Any], bool]:
    """Return the names of the parameters in order, the annotated types of those that have one, and if other keywords
    are errors.

    Untyped keywords, which a constructor passes on, have the types of its base classes. Those of an unpacked TypedDict
    must be among its keys, which Python does not check.
    """
    functions = [target]
    if inspect.isclass(target):
        functions = [vars(base)["__init__"] for base in reversed(target.__mro__) if "__init__" in vars(base)]
    hints: dict[str, Any] = {}
    is_closed = False
    for function in functions:
        own, types_of_own = inspect.signature(function).parameters, type_hints(function)
        keywords = [name for name, one in own.items() if one.kind is one.VAR_KEYWORD]
        is_closed = any(typing.get_origin(types_of_own.get(name)) is typing.Unpack for name in keywords)
        passes_on = bool(keywords) and not is_closed
        hints = {name: hint for name, hint in hints.items() if passes_on and name not in own} | types_of_own
    return list(inspect.signature(target).parameters), hints, is_closed


def unwrapped(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return the class or function that a partial or a wrapper calls."""
    while isinstance(factory, functools.partial) or hasattr(factory, "__wrapped__"):
        factory = factory.func if isinstance(factory, functools.partial) else factory.__wrapped__
    return factory


def type_hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotated types of the parameters of a class or function, or of the target of a partial or wrapper.

    Those of an unpacked TypedDict are included by key. Empty if an annotation cannot be resolved.
    """
    factory = unwrapped(factory)
    target = factory.__init__ if inspect.isclass(factory) else factory
    try:
        hints = typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}  # an annotation that cannot be resolved restricts nothing
    for annotation in list(hints.values()):
        if typing.get_origin(annotation) is typing.Unpack:
            hints |= typing.get_type_hints(typing.get_args(annotation)[0], include_extras=True)
    return hints


def describe_mismatch(name: str, value: Any, annotation: Any) -> str:
    """Return a message that names an option, the accepted values and the value; empty if the value is accepted.

    Integers, also in lists and tables, must have at most 64 bits, or fit into float64 if floats are annotated.
    """
    accepted, limit = accepted_values(annotation), ""
    if accepted.contain(value):
        floats = "float" in str(annotation)
        if _largest_integer(value) < (2**1023 if floats else 2**63):
            return ""
        limit = " within float64" if floats else " of at most 64 bits"
    return f"`{name}` must be {accepted.description}{limit}; got {value!r:.500}."


def check_state(owner: str, state: object, types: Mapping[str, Any]) -> None:
    """Raise unless a saved state is a dict with these keys and types of values.

    Raises:
        ConfigError.
    """
    advice = "It was saved by another object or version."
    if not isinstance(state, Mapping) or state.keys() != types.keys():
        found = list(state) if isinstance(state, Mapping) else type(state).__name__
        raise ConfigError(f"the state of {owner} must have the keys {sorted(types)}; got {found}. {advice}")
    for name, annotation in types.items():
        if error := describe_mismatch(name, state[name], annotation):
            raise ConfigError(f"the state of {owner}: {error} {advice}")


def _largest_integer(value: Any) -> int:
    if isinstance(value, Mapping):
        return _largest_integer(list(value.values()))
    if isinstance(value, _LISTS):
        return max(map(_largest_integer, value), default=0)
    return abs(value) if isinstance(value, int) else 0


def fits(value: Any, annotation: Any) -> bool:
    """True if a value has an annotated type and is within its range."""
    return accepted_values(annotation).contain(value)


class Values(NamedTuple):
    """The values that an annotated type accepts."""

    description: str
    contain: Callable[[Any], bool]


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


_ANY = Values("any", lambda value: True)
_PLAIN: Mapping[Any, Values] = {
    int: Values("an integer", _is_integer),
    float: Values("a number", lambda value: (_is_integer(value) or isinstance(value, float)) and abs(value) < math.inf),
    bool: Values("true or false", lambda value: isinstance(value, bool)),
    str: Values("a text", lambda value: isinstance(value, str)),
    type(None): Values("none", lambda value: value is None),
    Any: _ANY,
    inspect.Parameter.empty: _ANY,
}
_BOUNDS: Mapping[type[Any], tuple[str, Callable[[Any, Any], bool], str]] = {
    Ge: ("ge", operator.ge, "≥ {:.12g}"),
    Gt: ("gt", operator.gt, "> {:.12g}"),
    Le: ("le", operator.le, "≤ {:.12g}"),
    Lt: ("lt", operator.lt, "< {:.12g}"),
    MinLen: ("min_length", lambda value, length: len(value) >= length, "with length ≥ {}"),
    MaxLen: ("max_length", lambda value, length: len(value) <= length, "with length ≤ {}"),
}


def accepted_values(annotation: Any) -> Values:
    """Return the values that an annotated type accepts; classes, except tensors, and callables are not tested."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    kind, args = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if typing.is_typeddict(annotation):
        return _typed_dict(annotation)
    if kind in _GENERIC:
        return _GENERIC[kind](args)
    name = getattr(annotation, "__name__", str(annotation))
    if name == "Tensor":  # this module does not import torch
        return Values("a tensor", lambda value: isinstance(value, annotation))
    return Values(name, lambda value: True)


def _literal(args: tuple[Any, ...]) -> Values:
    description = ("one of " if len(args) > 1 else "") + ", ".join(map(render_value, args))
    return Values(description, lambda value: any(type(value) is type(arg) and value == arg for arg in args))


def _union(args: tuple[Any, ...]) -> Values:
    parts = [accepted_values(arg) for arg in args]
    description = " or ".join(part.description for part in parts)
    return Values(description, lambda value: any(part.contain(value) for part in parts))


def _typed_dict(annotation: Any) -> Values:
    hints = typing.get_type_hints(annotation, include_extras=True)
    fields = {key: accepted_values(hint) for key, hint in hints.items()}
    return Values(
        annotation.__name__,
        lambda value: (
            isinstance(value, Mapping)
            and annotation.__required_keys__ <= value.keys()
            and all(fields[key].contain(value[key]) for key in fields.keys() & value.keys())
        ),
    )


def _tuple(args: tuple[Any, ...]) -> Values:
    if not args or args[-1] is ...:
        return _list(args)
    items = [accepted_values(arg) for arg in args]
    return Values(
        f"a list of {len(items)} ({', '.join(item.description for item in items)})",
        lambda value: (
            isinstance(value, _LISTS)
            and len(value) == len(items)
            and all(item.contain(entry) for item, entry in zip(items, value, strict=True))
        ),
    )


def _list(args: tuple[Any, ...]) -> Values:
    item = accepted_values(args[0]) if args else _ANY
    each = f" ({item.description} each)" if args else ""
    return Values(f"a list{each}", lambda value: isinstance(value, _LISTS) and all(map(item.contain, value)))


def _table(args: tuple[Any, ...]) -> Values:
    key, item = map(accepted_values, args or (Any, Any))
    each = f" ({item.description} each)" if args else ""
    return Values(
        f"a table by name{each}",
        lambda value: (
            isinstance(value, Mapping) and all(map(key.contain, value)) and all(map(item.contain, value.values()))
        ),
    )


def _bounded(args: tuple[Any, ...]) -> Values:
    """Return the values of a type within bounds, described by its notes too; other metadata is ignored."""
    annotation, *metadata = args
    base = accepted_values(annotation)
    split = [bound for item in metadata for bound in (item if isinstance(item, GroupedMetadata) else [item])]
    bounds = [(*_BOUNDS[type(bound)], bound) for bound in split if type(bound) in _BOUNDS]
    texts = [text.format(getattr(bound, name)) for name, _, text, bound in bounds]
    infinity = annotation is float and Le(math.inf) in split
    notes = [item.documentation for item in metadata if isinstance(item, DocInfo)]
    return Values(
        "; ".join([f"{base.description} {' and '.join(texts)}".strip(), *notes]),
        lambda value: (
            (base.contain(value) or (infinity and isinstance(value, float) and value == math.inf))
            and all(holds(value, getattr(bound, name)) for name, holds, _, bound in bounds)
        ),
    )


_GENERIC: Mapping[Any, Callable[[tuple[Any, ...]], Values]] = {
    Annotated: _bounded, Literal: _literal, typing.Union: _union, types.UnionType: _union, tuple: _tuple,
    list: _list, Sequence: _list, dict: _table, Mapping: _table,
}  # fmt: skip
"""The values of a generic type by its arguments."""

SCALE = inspect.Parameter("scale", inspect.Parameter.KEYWORD_ONLY, default="mean", annotation=Literal["mean", "paper"])
"""The option that gradhomog adds to a method whose paper uses another scale than the mean of the rows."""


@functools.lru_cache(maxsize=256)  # a plugin is made hundreds of times by its tests
def option_parameters(spec: Spec) -> Mapping[str, inspect.Parameter]:
    """Return the options of a plugin, in order: its factory's parameters except those that gradhomog supplies.

    Their annotations are types, or `Parameter.empty` if they cannot be resolved. The option `scale` is added if the
    method has a `paper_scale`. Keywords with the annotation `**keywords: Unpack[SomeTypedDict]` are options with the
    names of its keys. Their defaults are those of the base classes.
    """
    parameters, hints = inspect.signature(spec.factory).parameters, type_hints(spec.factory)
    defaults: dict[str, Any] = {}
    for base in reversed(getattr(unwrapped(spec.factory), "__mro__", ())):
        defaults |= {name: one.default for name, one in inspect.signature(base.__init__).parameters.items()}
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            for options in filter(typing.is_typeddict, typing.get_args(hints.get(name))):
                for key in options.__annotations__:
                    default = defaults.get(key, parameter.empty)
                    found[key] = inspect.Parameter(key, parameter.KEYWORD_ONLY, default=default)
        elif name not in spec.supplied and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            found[name] = parameter
    found = {name: one.replace(annotation=hints.get(name, one.empty)) for name, one in found.items()}
    return {**found, "scale": SCALE} if has_paper_scale(spec) else found


def has_paper_scale(spec: Spec) -> bool:
    """True if the factory overrides `paper_scale`; the plugin then has the option `scale`.

    It does so if the paper's direction has another length than the direction of gradhomog.
    """
    overrides = getattr(spec.factory, "overrides", None)  # of `Homogenizer`, whose module imports torch and this one
    return isinstance(spec, HomogenizerSpec) and overrides is not None and bool(overrides("paper_scale"))


def documentation(spec: Spec) -> str:
    """Return the docstring of a plugin's factory, or an empty string; docstrings of base classes do not count."""
    factory = spec.factory
    while isinstance(factory, functools.partial) and factory.__doc__ == functools.partial.__doc__:
        factory = factory.func
    return inspect.cleandoc(getattr(factory, "__doc__", None) or "")


def describe(spec: Spec) -> list[str]:
    """Describe the options of a plugin, with defaults and accepted values: `alpha=1.5 (a number ≥ 0)`."""
    described = []
    for name, parameter in option_parameters(spec).items():
        default = "" if parameter.default is parameter.empty else f"={render_value(parameter.default)}"
        described.append(f"{name}{default} ({accepted_values(parameter.annotation).description})")
    return described


def validate_options(spec: Spec, plugin: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the options of a plugin, and return those that its factory receives: all but `SCALE`.

    An integer is a valid float. The message of a wrong value is that of `describe_mismatch`. The arguments of a
    constructor that is called in Python are validated by `ValidatedConstructor`, the keys of `[problem]` in a run file
    by `gradhomog.experiments.run_file.content.problem_table`.

    Raises:
        OptionError: a name is unknown (the message lists the options), a required option is missing, or a type is
            wrong.
    """
    parameters = option_parameters(spec)
    errors = []
    for name, value in options.items():
        if name not in parameters:
            hint = did_you_mean(name, parameters)
            if "options" in parameters:  # a wrapper of another plugin
                hint += f" Options of the wrapped plugin are written options={{'{name}': …}}."
            errors.append(f"{plugin} has no option '{name}'.{hint} {_known_options(spec)}")
        elif error := describe_mismatch(name, value, parameters[name].annotation):
            errors.append(f"{plugin}: {error}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in options:
            errors.append(f"{plugin} requires the option '{name}'. {_known_options(spec)}")
    if errors:
        raise OptionError(join_errors(errors))
    return {name: value for name, value in options.items() if parameters.get(name) is not SCALE}


def _known_options(spec: Spec) -> str:
    return f"Its options: {', '.join(describe(spec)) or 'none'}."
