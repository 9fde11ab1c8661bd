"""TOML of unknown origin: read within bounds on size, depth and digits."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError

MAX_BYTES = 2**15
"""Bound on a file or a text: 32 KiB, 20 times a run file. Python's parser is quadratic in the parts of a dotted key."""

TOO_LONG = f"TOML of more than {MAX_BYTES:,} bytes is not read; a run file has about a thousand."

MAX_DEPTH = 50
"""Bound on tables within tables and lists within lists; a run file has three."""

TOO_DEEP = f"tables and lists may be nested {MAX_DEPTH} deep; these are nested deeper."

MAX_DIGITS = 1000
"""Bound on the digits of an integer; Python refuses to read, and to print, those of more than 4300."""


class SyntaxFault(ConfigError):
    """The text is no TOML."""


def read(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        ConfigError: the file is missing, no file, no TOML, or exceeds a bound; names the file.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(TOO_LONG)
        return parse(content.decode("utf-8"))
    except FileNotFoundError as cause:
        raise ConfigError(f"{path}: there is no such file.") from cause
    except IsADirectoryError as cause:
        raise ConfigError(f"{path}: is a folder; a run file in TOML is needed.") from cause
    except OSError as cause:
        raise ConfigError(f"{path}: the file cannot be read: {cause.strerror or cause}.") from cause
    except ConfigError as cause:
        raise ConfigError(f"{path}: {cause}") from cause
    except ValueError as cause:  # of bytes that are no UTF-8, or of a path with a NUL
        raise ConfigError(f"{path}: the file cannot be read: {cause}.") from cause


def parse(text: str) -> dict[str, Any]:
    """The content of a text.

    Raises:
        SyntaxFault: it is no TOML.
        ConfigError: it has more than 32,768 bytes, is nested deeper than 50, or an integer has more than 1000 digits.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(TOO_LONG)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise SyntaxFault(f"no valid TOML: {cause}.") from cause
    except RecursionError as cause:
        raise ConfigError(TOO_DEEP) from cause
    except ValueError as cause:  # `int` of too many digits
        raise ConfigError(f"an integer may have {MAX_DIGITS} digits; one has more.") from cause
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH + 1):
        if any(isinstance(value, int) and abs(value) >= 10**MAX_DIGITS for value in level):
            raise ConfigError(f"an integer may have {MAX_DIGITS} digits; one has more.")
        level = list(itertools.chain.from_iterable(map(_inside, level)))
    if level:
        raise ConfigError(TOO_DEEP)
    return content


def _inside(value: object) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list) else []
