"""Options of a plugin: read them from its factory's signature and annotations, validate and describe them.

`gradhomog.registry.annotated_values` lists the annotations.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Mapping
from typing import Any, Literal

from gradhomog.errors import OptionError, did_you_mean, join_errors
from gradhomog.registry.annotated_values import accepted_values, describe_mismatch, type_hints, unwrapped
from gradhomog.registry.expression import render_value
from gradhomog.registry.specs import ExecutorSpec, HomogenizerSpec, Spec

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
    if not isinstance(spec, HomogenizerSpec) or not inspect.isclass(spec.factory):
        return False
    from gradhomog.step.homogenizer import Homogenizer  # imports torch, which listings must not

    return issubclass(spec.factory, Homogenizer) and spec.factory.overrides("paper_scale")


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


def bind(spec: Spec, plugin: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for the factory, all but `SCALE`, if their names and types are right.

    An integer is a valid float.

    Raises:
        OptionError: a name is unknown (the message lists the options), a required option is missing, or a type is
            wrong.
    """
    parameters = option_parameters(spec)
    errors = []
    for name, value in options.items():
        if name not in parameters and isinstance(spec, ExecutorSpec) and spec.other_options:
            continue
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
