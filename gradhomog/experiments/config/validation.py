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
from gradhomog.faults import join_faults
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
        ConfigError: keys are unknown (with suggestions), values of the wrong type or out of range; it names all.
    """
    faults: list[str] = []
    table = _build(kind, content, where, special, faults)
    if faults:
        raise ConfigError(join_faults(faults))
    return typing.cast(Table, table)


def _build(kind: Any, content: Mapping[str, Any], where: str, special: tuple[str, ...], faults: list[str]) -> Any:
    """The dataclass; None if something is wrong, which is added to `faults`."""
    fields = {item.name: item for item in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{where}{key}"
        if key not in fields:
            hint = did_you_mean(key, fields, f"`{where}{{}}`")
            faults.append(f"unknown key `{path}`.{hint} Known here: {', '.join(fields)}.")
        elif key in special:
            values[key] = value
        elif dataclasses.is_dataclass(hints[key]):
            if isinstance(value, Mapping):
                values[key] = _build(hints[key], value, f"{path}.", (), faults)
            else:
                faults.append(f"`{path}` must be a table; got {value!r}.")
        elif not fits(value, hints[key]):
            faults.append(f"`{path}` must be {words(hints[key])}; got {value!r}.")
        else:
            values[key] = _float(value) if hints[key] is float else value
            faults += _range_faults(path, values[key], fields[key].metadata)
    return None if faults else kind(**values)


def _float(value: float) -> float:
    """Infinity for an integer that is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _range_faults(path: str, value: Any, limits: Mapping[str, Any]) -> list[str]:
    minimum = limits.get("min")
    if minimum is None:
        return []
    above = value > minimum if limits["exclusive"] else value >= minimum
    if (isinstance(value, int) or math.isfinite(value)) and above and value < limits["below"]:
        return []
    word = "greater than" if limits["exclusive"] else "at least"
    top = "" if limits["below"] == math.inf else f" and less than {limits['below']}"
    return [f"`{path}` must be {word} {minimum}{top}; got {value!r}."]
