"""Validate tables of a run file and convert them to frozen dataclasses; errors contain the key path."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeVar

from gradhomog.annotated_values import describe_type, fits
from gradhomog.error_lists import join_errors
from gradhomog.errors import ConfigError
from gradhomog.experiments.config.suggestions import did_you_mean

Table = TypeVar("Table")


def at_least(
    minimum: float, default: Any, *, exclusive: bool = False, below: float = math.inf, maximum: float = math.inf
) -> Any:
    """A dataclass field for a number ≥ `minimum` (> `minimum` if `exclusive`), < `below`, and ≤ `maximum`."""
    limits = {"min": minimum, "exclusive": exclusive, "below": below, "max": maximum}
    return field(default=default, metadata=limits)


def build(kind: type[Table], content: Mapping[str, Any], prefix: str = "", prebuilt: tuple[str, ...] = ()) -> Table:
    """Build the dataclass of a table; omitted keys have their defaults.

    Args:
        kind: the dataclass; fields that are dataclasses are nested tables.
        prefix: the path of the table with a trailing dot, which precedes its keys in messages.
        prebuilt: keys whose values are already built and are not validated.

    Raises:
        ConfigError: keys are unknown (with suggestions), or values have the wrong type or are out of range; the message
            lists all errors.
    """
    errors: list[str] = []
    table = _build(kind, content, prefix, prebuilt, errors)
    if errors:
        raise ConfigError(join_errors(errors))
    return typing.cast(Table, table)


def _build(kind: Any, content: Mapping[str, Any], prefix: str, prebuilt: tuple[str, ...], errors: list[str]) -> Any:
    """The dataclass; None if there are errors, which are appended to `errors`."""
    fields = {item.name: item for item in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{prefix}{key}"
        if key not in fields:
            hint = did_you_mean(key, fields, f"`{prefix}{{}}`")
            errors.append(f"unknown key `{path}`.{hint} Keys of this table: {', '.join(fields)}.")
        elif key in prebuilt:
            values[key] = value
        elif dataclasses.is_dataclass(hints[key]):
            if isinstance(value, Mapping):
                values[key] = _build(hints[key], value, f"{path}.", (), errors)
            else:
                errors.append(f"`{path}` must be a table; got {value!r}.")
        elif not fits(value, hints[key]):
            errors.append(f"`{path}` must be {describe_type(hints[key])}; got {value!r}.")
        else:
            values[key] = _to_float(value) if hints[key] is float else value
            errors += _range_errors(path, values[key], fields[key].metadata)
    return None if errors else kind(**values)


def _to_float(value: float) -> float:
    """The number as float; infinity for an integer that exceeds the range of floats."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _range_errors(path: str, value: Any, limits: Mapping[str, Any]) -> list[str]:
    minimum = limits.get("min")
    if minimum is None:
        return []
    above_minimum = value > minimum if limits["exclusive"] else value >= minimum
    below_maximum = value < limits["below"] and value <= limits["max"]
    if (isinstance(value, int) or math.isfinite(value)) and above_minimum and below_maximum:
        return []
    lower = "greater than" if limits["exclusive"] else "at least"
    upper = "" if limits["below"] == math.inf else f" and less than {limits['below']}"
    upper += "" if limits["max"] == math.inf else f" and at most {limits['max']}"
    return [f"`{path}` must be {lower} {minimum}{upper}; got {value!r}."]
