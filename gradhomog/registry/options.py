"""Options of a plugin: read them from its factory's signature and annotations, validate and describe them.

`gradhomog.registry.annotated_values` lists the annotations.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from gradhomog.errors import OptionError, join_errors
from gradhomog.registry.annotated_values import annotations_of, check_value, describe_type, format_value, type_hints
from gradhomog.registry.specs import SIGNATURE_ONLY, HomogenizerSpec, Spec

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
    hints = annotations_of(factory)
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
    from gradhomog.step.homogenizer import Homogenizer  # imports torch, which listings must not

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
        default = "" if parameter.default is parameter.empty else f"={format_value(parameter.default)}"
        described.append(f"{name}{default} ({describe_type(hints.get(name, Any))})")
    return described


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


def _hints(spec: Spec) -> dict[str, Any]:
    hints = type_hints(spec.factory)
    return {**hints, "scale": SCALE.annotation} if has_paper_scale(spec) else hints
