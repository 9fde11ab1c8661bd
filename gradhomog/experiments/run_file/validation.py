"""Validate tables of a run file and convert them to frozen dataclasses; errors contain the key path."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from gradhomog.errors import ConfigError, did_you_mean, join_errors
from gradhomog.registry.options import accepted_values, describe_mismatch

Table = TypeVar("Table")


def build(kind: type[Table], content: Mapping[str, Any], prefix: str = "") -> Table:
    """Build the dataclass of a table; omitted keys have their defaults.

    Args:
        kind: the dataclass; fields that are dataclasses, or lists of them or dictionaries with them, are nested tables.
        prefix: the path of the table with a trailing dot, which precedes its keys in messages.

    Raises:
        ConfigError: keys are unknown (with suggestions) or missing, or values have the wrong type or are out of range;
            the message lists all errors.
    """
    errors: list[str] = []
    table = _build(kind, content, prefix, errors)
    if errors:
        raise ConfigError(join_errors(errors))
    return typing.cast(Table, table)


def _build(kind: Any, content: Mapping[str, Any], prefix: str, errors: list[str]) -> Any:
    """The dataclass; None if there are errors, which are appended to `errors`."""
    fields = [item.name for item in dataclasses.fields(kind)]
    plain, hints = typing.get_type_hints(kind), typing.get_type_hints(kind, include_extras=True)
    values: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{prefix}{key}"
        if key not in fields:
            hint = did_you_mean(key, fields, f"`{prefix}{{}}`")
            errors.append(f"unknown key `{path}`.{hint} Keys of this table: {', '.join(fields)}.")
        else:
            values[key] = _build_value(hints[key], value, path, errors)
            if plain[key] is float and not errors:
                values[key] = float(value)
    for item in dataclasses.fields(kind):
        without_default = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if without_default and item.name not in content:
            errors.append(
                f"`{prefix}{item.name}` is missing; it must be {accepted_values(hints[item.name]).description}."
            )
    return None if errors else kind(**values)


def _build_value(hint: Any, value: Any, path: str, errors: list[str]) -> Any:
    """A value of a key; tables in lists and in tables by name are built too."""
    origin = typing.get_origin(hint)
    inner = typing.get_args(hint)[-1] if origin in (dict, list) else None
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return _build(hint, value, f"{path}.", errors)
    if dataclasses.is_dataclass(hint):
        errors.append(f"`{path}` must be a table; got {value!r}.")
    elif dataclasses.is_dataclass(inner) and origin is dict and isinstance(value, Mapping):
        return {name: _build_value(inner, each, f"{path}.{name}", errors) for name, each in value.items()}
    elif dataclasses.is_dataclass(inner) and origin is list and isinstance(value, list):
        return [_build_value(inner, each, f"{path}[{index}]", errors) for index, each in enumerate(value)]
    elif error := describe_mismatch(path, value, hint):
        errors.append(error)
    return value
