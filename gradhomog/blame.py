"""Which of somebody else's code went wrong, and where: read off an exception's traceback; and how it is told."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

import gradhomog


def told(cause: BaseException) -> str:
    """The error with the place where it was raised and our version, for a message that names the plugin before it."""
    frames = traceback.extract_tb(cause.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}; " if frames else ""
    return f"{type(cause).__name__}: {cause} ({where}gradhomog {gradhomog.__version__})"


def passed_through(cause: BaseException, function: Callable[..., Any]) -> bool:
    """Whether the error was raised in a function, or in what it called."""
    code: CodeType | None = getattr(function, "__code__", None)
    return any(frame.f_code is code for frame, _ in traceback.walk_tb(cause.__traceback__))


def passed_through_package(cause: BaseException, module: str) -> bool:
    """Whether the error was raised in a module's outermost package, or in what that called."""
    package = module.partition(".")[0]
    names = (str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(cause.__traceback__))
    return any(name.partition(".")[0] == package for name in names)


def in_one_line(error: str) -> str:
    """An error's text as one line: its lines joined, without the traceback that may follow them."""
    words = re.split(r"\n\n(?=Traceback \(most recent| *\+ Exception Group)", error)[0]
    return " ".join(words.split())
