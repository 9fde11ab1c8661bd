"""Parser and printer of the text form of a pipeline: `"reweight(beta=1.5) + pcgrad"`.

pipeline = "none" | "" | member { "+" member }
member   = [ distribution ":" ] name [ "(" [ option { "," option } ] ")" ]
option   = name "=" value
value    = number | text in quotes | true | false | none | inf | [ values ] | { text: value }

Values may be nested 50 levels deep; an integer may have 1000 digits.
"""

import math
import re
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, NoReturn

from gradhomog.errors import ExpressionError

Member = tuple[str, dict[str, Any]]
"""A plugin's selector and its options."""

_SELECTOR = r"[A-Za-z_][\w.\-]*(?::[^\s()+|,=]+)?"
_NAME = r"[A-Za-z_]\w*"
_NUMBER = r"[+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_TEXT = r'"(?:[^"\\]|\\.)*"' + r"|'(?:[^'\\]|\\.)*'"
_WORDS: Mapping[str | None, Any] = {
    "true": True, "false": False, "none": None, "True": True, "False": False, "None": None,
    "inf": math.inf, "-inf": -math.inf,
}  # fmt: skip
_VALUE = "a value: a number, a text in quotes, true, false, none, inf, [...] or {...}"
_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t"}
_DEPTH = 50  # far below Python's recursion limit, and above the depth of any option
_DIGITS = 1000  # Python neither reads nor prints integers of more than 4300 digits


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
    reader.require(r"\Z", "'+' and another name, or the end")
    return members


def parse_alternatives(text: str) -> list[list[Member]]:
    """Parse pipelines separated by `|`: candidates, of which a comparison keeps the one with the best validation score.

    >>> parse_alternatives("none | pcgrad")
    [[], [('pcgrad', {})]]
    """
    reader = _Reader(text)
    found: list[list[Member]] = []
    while not found or reader.match(r"\|"):
        if reader.next == "|" or (found and not reader.next):
            reader.fail("expected a pipeline: write 'none' for the plain learner")
        found.append(reader.members())
    reader.require(r"\Z", "'+' and another name, '|' and another pipeline, or the end")
    return found


def parse_one(text: str) -> Member:
    """Parse one name with options: a learner, or a domain such as `glyphs:greek(background=0.3)`."""
    reader = _Reader(text)
    member = reader.member()
    reader.require(r"\Z", "the end of the text: only one name is allowed here")
    return member


def render(members: list[Member]) -> str:
    """Return the text form of members; `parse` is the inverse."""
    return " + ".join(render_one(selector, options) for selector, options in members) or "none"


def render_one(selector: str, options: Mapping[str, Any]) -> str:
    """Return the text form of one member.

    >>> render_one("static", {"weights": [1, 2.0], "key": "slot", "flag": True})
    'static(weights=[1, 2.0], key="slot", flag=true)'
    """
    inside = ", ".join(f"{name}={render_value(value)}" for name, value in options.items())
    return f"{selector}({inside})" if inside else selector


def render_value(value: Any) -> str:
    """Return the text form of an option's value."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{render_value(k)}: {render_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple, range)):
        return "[" + ", ".join(map(render_value, value)) + "]"
    if isinstance(value, float | Integral):  # the repr of NumPy's numbers is no number
        value = float(value) if isinstance(value, float) else int(value)
    return repr(value)


class _Reader:
    """Reads a text token by token; the spaces after a token belong to it."""

    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0
        self.match("")

    @property
    def next(self) -> str:
        """The next character; an empty text at the end."""
        return self.text[self.position : self.position + 1]

    def fail(self, reason: str, position: int | None = None) -> NoReturn:
        raise ExpressionError(reason, self.text, self.position if position is None else position)

    def match(self, token: str) -> str | None:
        """Read a token, given as a regular expression; None, and nothing is read, if another one follows."""
        found = re.compile(rf"({token})\s*").match(self.text, self.position)
        if found is None:
            return None
        self.position = found.end()
        return found[1]

    def require(self, token: str, expected: str) -> str:
        if (found := self.match(token)) is None:
            self.fail(f"expected {expected}")
        return found

    def members(self) -> list[Member]:
        """Read names joined by '+'; `none` and the empty text are the empty pipeline."""
        found: list[Member] = []
        starts: list[int] = []
        while self.match(r"\+") if found else self.next and self.next != "|":
            starts.append(self.position)
            found.append(self.member())
        selectors = [selector for selector, _ in found]
        if "none" not in selectors:
            return found
        start = starts[selectors.index("none")]
        if len(found) > 1:
            self.fail("'none' is the empty pipeline and cannot be combined", start)
        if found[0][1]:
            self.fail("'none' is the empty pipeline and takes no options", self.text.index("(", start))
        return []

    def member(self) -> Member:
        selector = self.require(_SELECTOR, "a name")
        return selector, self.table(")", self.option_name, "=", "option") if self.next == "(" else {}

    def value(self) -> Any:
        start = self.position
        if self.next == "[":
            return self.entries("]", self.value)
        if self.next == "{":
            return self.table("}", self.quoted, ":", "key")
        if self.next in ("'", '"'):
            return self.quoted(_VALUE)
        if (word := self.match(_NUMBER)) is not None:
            if set(word) & set(".eE"):
                return float(word)
            if (digits := sum(map(str.isdigit, word))) > _DIGITS:
                self.fail(f"an integer must have at most {_DIGITS} digits; got {digits}", start)
            return int(word)
        if (word := self.match(f"-?{_NAME}")) not in _WORDS:
            self.fail(f"expected {_VALUE}", start)
        return _WORDS[word]

    def option_name(self) -> str:
        return self.require(_NAME, "an option's name or ')'")

    def quoted(self, expected: str = "a key in quotes") -> str:
        start = self.position

        def unescape(found: re.Match[str]) -> str:
            if found[1] not in _ESCAPES:
                reason = rf"""'{found[0]}' is not a valid escape; write \\ for a backslash, or \", \', \n, \t"""
                self.fail(reason, start + found.start())
            return _ESCAPES[found[1]]

        return re.sub(r"\\(.)", unescape, self.require(_TEXT, expected))[1:-1]

    def table(self, closing: str, read_key: Callable[[], str], separator: str, kind: str) -> dict[str, Any]:
        """Read keys with values up to the closing bracket."""
        found: dict[str, Any] = {}

        def read_entry() -> None:
            start, key = self.position, read_key()
            if key in found:
                self.fail(f"{kind} '{key}' is given twice", start)
            self.require(separator, f"'{separator}' and a value for the {kind} '{key}'")
            found[key] = self.value()

        self.entries(closing, read_entry)
        return found

    def entries(self, closing: str, read_entry: Callable[[], Any]) -> list[Any]:
        """Read entries separated by commas, from the opening to the closing bracket."""
        if self.depth > _DEPTH:  # the bracket of a name's options is the first level
            self.fail(f"lists and tables must be nested at most {_DEPTH} levels deep")
        self.depth += 1
        self.match(r"[(\[{]")
        found = []
        while not self.match(rf"\{closing}"):
            found.append(read_entry())
            if self.next != closing:
                self.require(",", f"',' or '{closing}'")
        self.depth -= 1
        return found
