"""Parser and printer of the text form of a pipeline: `"reweight(beta=1.5) + pcgrad"`.

pipeline = "none" | "" | member { "+" member }
member   = [ distribution ":" ] name [ "(" [ option { "," option } ] ")" ]
option   = name "=" value
value    = number | text in quotes | true | false | none | inf | [ values ] | { text: value }

Values may be nested 50 levels deep; an integer may have 1000 digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from gradhomog.errors import ExpressionError

Member = tuple[str, dict[str, Any]]
"""A plugin's selector and its options."""

_SELECTOR = re.compile(r"[A-Za-z_][\w.\-]*(?::[^\s()+|,=]+)?")
_NAME = re.compile(r"[A-Za-z_]\w*")
_WORDS = {"true": True, "false": False, "none": None, "True": True, "False": False, "None": None, "inf": math.inf}
_NUMBER = re.compile(r"[+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^'\\]|\\.)*'")
_DEPTH = 50  # far below Python's recursion limit, and above the depth of any option
_DIGITS = 1000  # Python neither reads nor prints integers of more than 4300 digits
_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t"}


def parse(text: str) -> list[Member]:
    """Parse a pipeline.

    >>> parse("reweight(beta=1.5) + pcgrad")
    [('reweight', {'beta': 1.5}), ('pcgrad', {})]
    >>> parse("none")
    []

    Raises:
        ExpressionError: the text does not parse; the message has a caret under the unexpected character.
    """
    reader = _Reader(text)
    members = reader.members()
    if not reader.at_end():
        reader.fail("expected '+' and another name, or the end")
    return members


def parse_alternatives(text: str) -> list[list[Member]]:
    """Parse pipelines separated by `|`: candidates, of which a comparison keeps the one with the best validation score.

    >>> parse_alternatives("none | pcgrad")
    [[], [('pcgrad', {})]]
    """
    reader = _Reader(text)
    found = [reader.members()]
    while not reader.at_end():
        if reader.position == 0 or text[: reader.position].strip() == "":
            reader.fail("expected a pipeline: write 'none' for the plain learner")
        reader.expect("|", "'+' and another name, '|' and another pipeline, or the end")
        if reader.at_end() or reader.peek("|"):
            reader.fail("expected a pipeline: write 'none' for the plain learner")
        found.append(reader.members())
    return found


def parse_one(text: str) -> Member:
    """Parse one name with options: a learner, or a domain such as `glyphs:greek(background=0.3)`."""
    reader = _Reader(text)
    member = reader.member()
    if not reader.at_end():
        reader.fail("expected the end of the text: only one name is allowed here")
    return member


def render(members: list[Member]) -> str:
    """Return the text form of members; `parse` is the inverse."""
    return " + ".join(render_one(selector, options) for selector, options in members) or "none"


def render_one(selector: str, options: Mapping[str, Any]) -> str:
    """Return the text form of one member.

    >>> render_one("static", {"weights": [1, 2.0], "key": "slot", "flag": True})
    'static(weights=[1, 2.0], key="slot", flag=true)'
    """
    inside = ", ".join(f"{name}={_render_value(value)}" for name, value in options.items())
    return f"{selector}({inside})" if inside else selector


def _render_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_render_value(k)}: {_render_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_render_value, value)) + "]"
    return repr(float(value) if isinstance(value, float) else value)  # the repr of NumPy's floats is no number


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0

    def fail(self, reason: str) -> None:
        raise ExpressionError(reason, self.text, self.position)

    def skip(self) -> None:
        while self.position < len(self.text) and self.text[self.position].isspace():
            self.position += 1

    def at_end(self) -> bool:
        self.skip()
        return self.position == len(self.text)

    def peek(self, character: str) -> bool:
        self.skip()
        return self.text.startswith(character, self.position)

    def expect(self, character: str, what: str) -> None:
        if not self.peek(character):
            self.fail(f"expected {what}")
        self.position += len(character)

    def match(self, pattern: re.Pattern[str]) -> str | None:
        self.skip()
        found = pattern.match(self.text, self.position)
        if found is None:
            return None
        self.position = found.end()
        return found.group()

    def members(self) -> list[Member]:
        """Parse names joined by '+'; `none` and the empty text are the empty pipeline."""
        found: list[Member] = []
        none_at = -1
        while not self.at_end() and not self.peek("|") and (not found or self.peek("+")):
            if found:
                self.position += 1
                self.skip()
            start = self.position
            found.append(self.member())
            none_at = start if found[-1][0] == "none" else none_at
        if none_at >= 0 and len(found) > 1:
            self.position = none_at
            self.fail("'none' is the empty pipeline and cannot be combined")
        if none_at >= 0 and found[0][1]:
            self.position = self.text.index("(", none_at)
            self.fail("'none' is the empty pipeline and takes no options")
        return [] if none_at >= 0 else found

    def member(self) -> Member:
        selector = self.match(_SELECTOR)
        if selector is None:
            self.fail("expected a name")
        options: dict[str, Any] = {}
        if self.peek("("):
            self.position += 1
            while not self.peek(")"):
                self.skip()
                start = self.position
                name = self.match(_NAME)
                if name is None:
                    self.fail("expected an option's name or ')'")
                if name in options:
                    self.position = start
                    self.fail(f"option '{name}' is given twice")
                self.expect("=", f"'=' and a value for the option '{name}'")
                options[str(name)] = self.value()
                if not self.peek(")"):
                    self.expect(",", "',' or ')'")
            self.position += 1
        return str(selector), options

    def value(self) -> Any:
        if self.peek("["):
            return self.items("]", self.value)
        if self.peek("{"):
            found: dict[str, Any] = {}
            self.items("}", lambda: self.pair(found))
            return found
        if (text := self.quoted()) is not None:
            return text
        if self.peek("-inf"):
            self.position += 4
            return -math.inf
        if (word := self.match(_NUMBER)) is not None:
            return self.number(word)
        start = self.position
        if (word := self.match(_NAME)) is not None and word in _WORDS:
            return _WORDS[word]
        self.position = start
        self.fail("expected a value: a number, a text in quotes, true, false, none, inf, [...] or {...}")
        raise AssertionError  # `fail` always raises

    def number(self, word: str) -> int | float:
        if not re.fullmatch(r"[+-]?[\d_]+", word):
            return float(word)
        if (digits := sum(map(str.isdigit, word))) > _DIGITS:
            self.position -= len(word)
            self.fail(f"an integer must have at most {_DIGITS} digits; got {digits}")
        return int(word)

    def items(self, closing: str, read: Any) -> list[Any]:
        if self.depth == _DEPTH:
            self.fail(f"lists and tables must be nested at most {_DEPTH} levels deep")
        self.depth += 1
        self.position += 1
        found = []
        while not self.peek(closing):
            found.append(read())
            if not self.peek(closing):
                self.expect(",", f"',' or '{closing}'")
        self.position += 1
        self.depth -= 1
        return found

    def pair(self, found: dict[str, Any]) -> None:
        self.skip()
        start = self.position
        key = self.quoted()
        if key is None:
            self.fail("expected a key in quotes")
        if key in found:
            self.position = start
            self.fail(f"key '{key}' is given twice")
        self.expect(":", "':' and a value")
        found[str(key)] = self.value()

    def quoted(self) -> str | None:
        self.skip()
        start = self.position + 1
        word = self.match(_TEXT)

        def plain(escape: re.Match[str]) -> str:
            if escape[1] not in _ESCAPES:
                self.position = start + escape.start()
                self.fail(f"'{escape[0]}' is not a valid escape; write \\\\ for a backslash, or \\\", \\', \\n, \\t")
            return _ESCAPES[escape[1]]

        return None if word is None else re.sub(r"\\(.)", plain, word[1:-1])
