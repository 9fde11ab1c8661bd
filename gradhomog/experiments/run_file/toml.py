"""Read untrusted TOML, with limits on size, nesting depth and digits."""

import itertools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError
from gradhomog.files import read_text

MAX_BYTES = 2**15
"""Maximum size of a file or text: 32 KiB, 20 times a run file. Python's parser takes quadratic time in the number of
parts of a dotted key."""

TOO_LONG = f"TOML must have at most {MAX_BYTES:,} bytes; this text is longer. A run file has about a thousand bytes."

MAX_DEPTH = 50
"""Maximum nesting depth of tables and lists; a run file has depth three."""

TOO_DEEP = f"tables and lists may be nested {MAX_DEPTH} deep; these are nested deeper."

MAX_DIGITS = 1000
"""Maximum number of digits of an integer; Python can neither read nor print integers of more than 4300 digits."""


TOO_MANY_DIGITS = f"an integer may have {MAX_DIGITS} digits; one has more."


class TomlSyntaxError(ConfigError):
    """The text is not valid TOML."""


def read(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        ConfigError: the file is missing, is a folder, is not valid TOML, or exceeds a limit; the message has its path.
    """
    content = read_text(path, MAX_BYTES, "A run file has about a thousand bytes.", ConfigError)
    try:
        return parse(content)
    except ConfigError as cause:
        raise ConfigError(f"{path}: {cause}") from cause


def parse(text: str) -> dict[str, Any]:
    """The content of a TOML text.

    Raises:
        TomlSyntaxError: the text is not valid TOML.
        ConfigError: the text has more than 32,768 bytes, more than 50 levels, or an integer of more than 1000 digits.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(TOO_LONG)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise TomlSyntaxError(f"invalid TOML: {cause}.") from cause
    except RecursionError as cause:
        raise ConfigError(TOO_DEEP) from cause
    except ValueError as cause:  # `int` rejects more than 4300 digits
        raise ConfigError(TOO_MANY_DIGITS) from cause
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH + 1):
        if any(isinstance(value, int) and abs(value) >= 10**MAX_DIGITS for value in level):
            raise ConfigError(TOO_MANY_DIGITS)
        tables = [value.values() for value in level if isinstance(value, dict)]
        lists = [value for value in level if isinstance(value, list)]
        level = list(itertools.chain(*tables, *lists))
    if level:
        raise ConfigError(TOO_DEEP)
    return content


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The entries of nested tables by their path, such as `train.steps`."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def merged(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """One nested table; of several values of a key, the last. The arguments are not changed."""
    found: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            inner = found.get(key)
            found[key] = merged(inner if isinstance(inner, dict) else {}, value) if isinstance(value, dict) else value
    return found


def apply_override(content: dict[str, Any], text: str) -> None:
    """Set the value of one `key.path=value` in the content of a run file, in place.

    Raises:
        ConfigError: the text has another form, or a part of its path is not a table.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set must be key.path=value; got {text!r}.")
    try:
        parsed = parse(f"value = {value}")["value"]
    except TomlSyntaxError:
        parsed = value.strip()  # an unquoted word is a string: --set learner=fomaml
    except ConfigError as error:
        raise ConfigError(f"--set {key.strip()}: {error}") from error
    *path, last = key.strip().split(".")
    if len(path) > MAX_DEPTH:
        raise ConfigError(f"--set {path[0]}.{path[1]}…: {TOO_DEEP}")
    table = content
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key.strip()}: `{part}` is not a table.")
    table[last] = parsed
