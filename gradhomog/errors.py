"""Exception classes. A message names the input, the expected and the actual value, and what to do.

The command line prints any `GradhomogError` as one message and exits with code 2. Any other exception is a bug of
gradhomog and keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType
from typing import Any

from gradhomog._version import __version__

# This module must not import torch, because the command line imports it first.

_MAX_WIDTH = 200  # characters of a line in a message


class GradhomogError(Exception):
    """Base of all errors that a user, a plugin or an input can cause."""


class OptionError(GradhomogError, ValueError):
    """An option is unknown, of the wrong type or out of range, or an argument is missing or has a wrong shape."""


class ExpressionError(OptionError):
    """The text form of a pipeline does not parse; the message contains the text and a caret under the error.

    `position` is the index of the marked character, counted from 0.
    """

    def __init__(self, reason: str, text: str, position: int) -> None:
        self.reason, self.text, self.position = reason, text, position
        start = text.rfind("\n", 0, position) + 1  # only the line with the error is printed
        line, place = text[start:].partition("\n")[0].replace("\t", " "), position - start
        if len(line) > _MAX_WIDTH:  # only the part around the error
            first = max(0, min(place - _MAX_WIDTH // 2, len(line) - _MAX_WIDTH))
            line, place = f"…{line[first : first + _MAX_WIDTH]}…", place - first + 1
        super().__init__(f"{reason}\n  {line}\n  {' ' * place}^")

    def __reduce__(self) -> tuple[type[ExpressionError], tuple[str, str, int]]:
        return type(self), (self.reason, self.text, self.position)  # `Exception` would pass the message only


class PluginError(GradhomogError):
    """Base of the errors of plugins; the message names the plugin, its distribution and its version."""


class UnknownPluginError(PluginError, LookupError):
    """No installed distribution offers a plugin of this name."""


class AmbiguousPluginError(PluginError):
    """Several installed distributions offer a plugin of this name."""


class DisabledPluginError(PluginError):
    """The environment variable GRADHOMOG_DISABLE blocks this plugin."""


class PluginLoadError(PluginError):
    """A plugin's module cannot be imported, or its hook is missing, misspelled or returns the wrong type."""


class PluginRunError(PluginError):
    """A plugin raised an exception or returned an invalid value."""


class NonfiniteError(GradhomogError, ArithmeticError):
    """A loss or a row contains NaN or infinity and the policy is `nonfinite="raise"`."""


class RankError(GradhomogError, RuntimeError):
    """Another rank of the process group raised an error, or has other tasks, parameters or states than this one."""


class NotDifferentiableError(GradhomogError):
    """A pipeline with a homogenizer that is not differentiable was called with `create_graph=True`."""


class ConvergenceWarning(UserWarning):
    """An iterative solver of a homogenizer stopped before it converged; the step uses its last iterate."""


class OneTaskWarning(UserWarning):
    """Homogenizers had no effect in several consecutive steps, because each had one task."""


class MomentumWarning(UserWarning):
    """The outer optimizer averages gradients over steps, although a homogenizer's rows are averages already."""


class DamagedCacheWarning(RuntimeWarning):
    """Cached pictures differ from those that were decoded, and are decoded again."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is damaged: its content does not match its SHA-256. Its pictures are decoded again."


class DataError(GradhomogError, ValueError):
    """A data file, a domain or a split cannot provide the requested tasks, or a tensor has the wrong shape or type."""


class ConfigError(GradhomogError, ValueError):
    """A run file, a `--set` override, a run folder or a saved state is invalid; the message names the key."""


def join_errors(messages: Iterable[object]) -> str:
    """Return a single message unchanged; several messages become a list without duplicates, headed by their number.

    >>> print(join_errors(["`seeds` must be an integer.", "unknown key `colour`."]))
    2 errors:
      - `seeds` must be an integer.
      - unknown key `colour`.
    """
    different = list(dict.fromkeys(str(message) for message in messages))
    if len(different) == 1:
        return different[0]
    items = ["  - " + message.replace("\n", "\n    ") for message in different]
    return "\n".join([f"{len(items)} errors:", *items])


def did_you_mean(name: object, known_names: Iterable[str], template: str = "'{}'") -> str:
    """Return a sentence that suggests the most similar known name, with a leading space; empty if none is similar.

    >>> did_you_mean("Landscpe", ["landscape", "regression"])
    " Did you mean 'landscape'?"
    """
    by_lower = {known.lower(): known for known in known_names}  # capitals make no difference
    matches = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return f" Did you mean {template.format(by_lower[matches[0]])}?" if matches else ""


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
