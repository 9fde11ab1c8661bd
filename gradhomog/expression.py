"""The text form of a pipeline: `"reweight(beta=1.5) + pcgrad"`.

    pipeline = "none" | "" | member { "+" member }
    member   = [ distribution ":" ] name [ "(" [ option { "," option } ] ")" ]
    option   = name "=" value
    value    = number | text in quotes | true | false | none | inf | [ values ] | { text: value }
"""

from __future__ import annotations

import ast
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


def parse(text: str) -> list[Member]:
    """Read the text form.

    >>> parse("reweight(beta=1.5) + pcgrad")
    [('reweight', {'beta': 1.5}), ('pcgrad', {})]
    >>> parse("none")
    []

    Raises:
        ExpressionError: with a caret under the character that does not fit.
    """
    reader = _Reader(text)
    members = [reader.member()] if not reader.at_end() else []
    while not reader.at_end():
        reader.expect("+", "'+' and another name, or the end")
        members.append(reader.member())
    if [selector for selector, _ in members] == ["none"]:
        if members[0][1]:
            raise ExpressionError("'none' is the empty pipeline and takes no options", text, text.index("("))
        return []
    for selector, _ in members:
        if selector == "none":
            raise ExpressionError("'none' is the empty pipeline and cannot be combined", text, text.index("none"))
    return members


def parse_one(text: str) -> Member:
    """Read one name with options: a learner, or a domain such as `glyphs:greek(background=0.3)`."""
    reader = _Reader(text)
    member = reader.member()
    if not reader.at_end():
        reader.fail("expected the end: a single name is meant here")
    return member


def render(members: list[Member]) -> str:
    """The text form of members; `parse` reads it back."""
    return " + ".join(render_one(selector, options) for selector, options in members) or "none"


def render_one(selector: str, options: Mapping[str, Any]) -> str:
    """The text form of one member.

    >>> render_one("static", {"weights": [1, 2.0], "key": "slot", "flag": True})
    'static(weights=[1, 2.0], key="slot", flag=true)'
    """
    inside = ", ".join(f"{name}={_render_value(value)}" for name, value in options.items())
    return f"{selector}({inside})" if inside else selector


def _render_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_render_value(k)}: {_render_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_render_value, value)) + "]"
    return repr(value)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

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
            return dict(self.items("}", self.pair))
        if (word := self.match(_TEXT)) is not None:
            return ast.literal_eval(word)
        if self.peek("-inf"):
            self.position += 4
            return -math.inf
        if (word := self.match(_NUMBER)) is not None:
            return int(word) if re.fullmatch(r"[+-]?[\d_]+", word) else float(word)
        start = self.position
        if (word := self.match(_NAME)) is not None and word in _WORDS:
            return _WORDS[word]
        self.position = start
        self.fail("expected a value: a number, a text in quotes, true, false, none, inf, [..] or {..}")
        raise AssertionError  # `fail` always raises

    def items(self, closing: str, read: Any) -> list[Any]:
        self.position += 1
        found = []
        while not self.peek(closing):
            found.append(read())
            if not self.peek(closing):
                self.expect(",", f"',' or '{closing}'")
        self.position += 1
        return found

    def pair(self) -> tuple[str, Any]:
        self.skip()
        key = self.match(_TEXT)
        if key is None:
            self.fail("expected a key in quotes")
        self.expect(":", "':' and a value")
        return ast.literal_eval(str(key)), self.value()
