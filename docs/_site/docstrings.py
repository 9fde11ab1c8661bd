"""Docstrings as Markdown and as reStructuredText: labelled paragraphs, formulas and code in backticks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LABELS = ("Use it when", "Cost:", "Source:", "Deviations:", "State:")
SECTIONS = ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


@dataclass(frozen=True)
class Paragraph:
    """A block of a docstring between blank lines.

    `kind` is one of `LABELS` or `SECTIONS`, or `"formula"` for an indented block, `"example"` for `>>>`, else `"text"`.
    """

    kind: str
    text: str


def paragraphs(docstring: str) -> Iterator[Paragraph]:
    """The blocks of a docstring in order.

    >>> [each.kind for each in paragraphs("Sum.\\n\\n    a + b\\n\\nArgs:\\n    a: one.\\n\\nCost: none.")]
    ['text', 'formula', 'Args:', 'Cost:']
    """
    for block in re.split(r"\n[ ]*\n", docstring.strip()):
        kind = next((label for label in (*SECTIONS, *LABELS) if block.startswith(label)), "")
        if not kind:
            kind = "formula" if block.startswith("    ") else "example" if block.startswith(">>>") else "text"
        yield Paragraph(kind, block if kind in ("formula", "example", *SECTIONS) else " ".join(block.split()))


def arguments(docstring: str) -> dict[str, str]:
    """The text of the section `Args:` of a docstring for each argument, on one line.

    >>> arguments("A method.\\n\\nArgs:\\n    a, b: one,\\n        or two.\\n    c: three.\\n\\nMore.")
    {'a': 'one, or two.', 'b': 'one, or two.', 'c': 'three.'}
    """
    section = re.search(r"^Args:\n((?:    .*\n?|\n(?=    ))*)", docstring, re.MULTILINE)
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else []:
        if start := re.fullmatch(r"    (\w+(?:, \w+)*): (.*)", line):
            names = start[1].split(", ")
            meanings |= dict.fromkeys(names, start[2])
        else:
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
    return meanings


def numbered(text: str) -> list[str]:
    """The items of a paragraph that numbers them `(1) …; (2) …`, without the numbers; one item if it has none.

    >>> numbered("(1) a sign; (2) no epsilon.")
    ['a sign', 'no epsilon.']
    """
    items = re.split(r"(?:^|(?<=[;.,:)]) )\(\d+\) ", text)
    return [item.strip().rstrip(";") for item in items if item.strip()]


def capitalized(text: str) -> str:
    """The text with a capital at its beginning, unless it begins with a symbol.

    >>> capitalized("the mean"), capitalized("a row"), capitalized("λ = 1")
    ('The mean', 'A row', 'λ = 1')
    """
    return f"{text[:1].upper()}{text[1:]}" if re.match(r"(?:a|[a-z]{2,})\b", text) else text


def to_rst(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Convert the lines of a docstring in place: docstrings are plain text with code in single backticks."""
    if re.match(r"(?:collections|builtins)\b", getattr(obj, "__module__", None) or ""):
        return
    text: list[str] = []
    example = False
    for index, line in enumerate(lines):
        before = lines[index - 1] if index else ""
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if line.startswith("    ") and not before.strip() and _is_formula(lines, index):
            text += ["::", ""]
        text.append(line if example or (line.startswith("    ") and _is_formula(lines, index)) else _rst(line))
    lines[:] = text


def _is_formula(lines: list[str], index: int) -> bool:
    """True if an indented line belongs to no section: the text before its block does not end with a colon."""
    while index and lines[index].startswith("    "):
        index -= 1
        while index and not lines[index].strip():
            index -= 1
    return not lines[index].rstrip().endswith(":") and not lines[index].startswith(":")


def _rst(line: str) -> str:
    """A line with code in double backticks, references to public names, and without accidental markup."""
    parts = []
    for index, part in enumerate(_CODE.split(line)):
        if index % 2 == 0:
            separator = "\\ " if index and part[:1].isalnum() else ""  # a letter directly after code: `state_dict`s
            parts.append(separator + re.sub(r"([*|])", r"\\\1", re.sub(r"(?<=\w)_(?=\W|$)", r"\\_", part)))
        elif re.fullmatch(r"gradhomog(\.\w+)+", part):
            parts.append(f":py:obj:`{part}`")
        else:
            parts.append(f"``{part}``")
    return "".join(parts)
