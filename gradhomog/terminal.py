"""Escape control characters of untrusted text, which a terminal would execute and SVG does not allow."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_CONTROLS = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Control characters, directions of writing and line separators, and code points that no encoding or XML has."""

_PROGRESS = re.compile(r"\r|(\x1b\[A)+$")
"""The movements of the cursor by tqdm, each at the beginning of a call of `write`."""


def escape_controls(text: str, keep: str = "") -> str:
    r"""Return the text with `\u001b` in place of a control character; JSON keeps its meaning.

    >>> print(escape_controls("red \x1b[31m\n"))
    red \u001b[31m\u000a
    """
    return _CONTROLS.sub(lambda match: match[0] if match[0] in keep else f"\\u{ord(match[0]):04x}", text)


class _EscapedStream:
    """A text stream whose `write` escapes all control characters except line ends, tabs and tqdm's movements."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        own = _PROGRESS.match(text)
        start = own.end() if own else 0
        self._stream.write(text[:start] + escape_controls(text[start:], keep="\n\t"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Context in which this process prints no control characters: names and errors come from files and plugins."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_EscapedStream, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
