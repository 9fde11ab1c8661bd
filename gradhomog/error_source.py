"""Find the plugin or function that raised an exception, and describe the exception in one message."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

from gradhomog._version import __version__


def describe_error(cause: BaseException) -> str:
    """Return type, message, file and line of an exception, and gradhomog's version, to follow the plugin's name."""
    frames = traceback.extract_tb(cause.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}; " if frames else ""
    return f"{type(cause).__name__}: {cause} ({where}gradhomog {__version__})"


def raised_in(cause: BaseException, function: Callable[..., Any]) -> bool:
    """True if the error was raised in a function, or in a function that it called."""
    code: CodeType | None = getattr(function, "__code__", None)
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(cause.__traceback__))


def raised_in_package(cause: BaseException, module: str) -> bool:
    """True if the error was raised in a module's top-level package, or in a function called from there."""
    package = module.partition(".")[0]
    names = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(cause.__traceback__))
    return any(name.partition(".")[0] == package for name in names)


def in_one_line(error: str) -> str:
    """Return an error's text as one line, without the traceback that may follow it."""
    words = re.split(r"\n\n(?=Traceback \(most recent| *\+ Exception Group)", error)[0]
    return " ".join(words.split())
