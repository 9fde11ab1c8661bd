"""Tables of a run file as frozen dataclasses: types and ranges are checked, and errors give the key path."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeVar

from gradhomog.errors import ConfigError
from gradhomog.experiments.config.suggestions import did_you_mean
from gradhomog.registry.options import fits, words

Table = TypeVar("Table")


def at_least(minimum: float, default: Any, *, exclusive: bool = False, below: float = math.inf) -> Any:
    """A field of a number: at least a minimum (or greater than it), and less than `below`."""
    return field(default=default, metadata={"min": minimum, "exclusive": exclusive, "below": below})


def build(kind: type[Table], content: Mapping[str, Any], where: str = "", special: tuple[str, ...] = ()) -> Table:
    """The dataclass of a table; what is left out has its default.

    Args:
        kind: fields that are dataclasses themselves are tables within the table.
        where: the path of the table, with a dot at its end; what its keys are called with in messages.
        special: keys whose values are taken as they are: somebody else has built them.

    Raises:
        ConfigError: a key is unknown (with a suggestion), a value of the wrong type or out of range.
    """
    fields = {item.name: item for item in dataclasses.fields(typing.cast(Any, kind))}
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{where}{key}"
        if key not in fields:
            hint = did_you_mean(key, fields, f"`{where}{{}}`")
            raise ConfigError(f"unknown key `{path}`.{hint} Known here: {', '.join(fields)}.")
        if key in special:
            values[key] = value
            continue
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise ConfigError(f"`{path}` must be a table; got {value!r}.")
            values[key] = build(typing.cast(type[Any], hints[key]), value, f"{path}.")
            continue
        if not fits(value, hints[key]):
            raise ConfigError(f"`{path}` must be {words(hints[key])}; got {value!r}.")
        if hints[key] is float:
            value = _float(value)
        _check_range(path, value, fields[key].metadata)
        values[key] = value
    return kind(**values)


def _float(value: float) -> float:
    """Infinity for an integer that is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _check_range(path: str, value: Any, limits: Mapping[str, Any]) -> None:
    minimum = limits.get("min")
    if minimum is None:
        return
    above = value > minimum if limits["exclusive"] else value >= minimum
    if (isinstance(value, int) or math.isfinite(value)) and above and value < limits["below"]:
        return
    word = "greater than" if limits["exclusive"] else "at least"
    top = "" if limits["below"] == math.inf else f" and less than {limits['below']}"
    raise ConfigError(f"`{path}` must be {word} {minimum}{top}; got {value!r}.")
