"""Overrides of the keys of a run file, as `--set key.path=value`."""

from __future__ import annotations

from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.experiments.run_file import toml


def apply_override(content: dict[str, Any], text: str) -> None:
    """Set the value of one `key.path=value` in the content of a run file, in place.

    Raises:
        ConfigError: the text has another form, or a part of its path is not a table.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set must be key.path=value; got {text!r}.")
    try:
        parsed = toml.parse(f"value = {value}")["value"]
    except toml.TomlSyntaxError:
        parsed = value.strip()  # an unquoted word is a string: --set learner=fomaml
    except ConfigError as error:
        raise ConfigError(f"--set {key.strip()}: {error}") from error
    *path, last = key.strip().split(".")
    if len(path) > toml.MAX_DEPTH:
        raise ConfigError(f"--set {path[0]}.{path[1]}…: {toml.TOO_DEEP}")
    table = content
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key.strip()}: `{part}` is not a table.")
    table[last] = parsed
