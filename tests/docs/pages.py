"""Parse pages: fenced blocks, inline code and rows of tables."""

import re
from pathlib import Path

from gradhomog.registry import Kind, installed

DOCS = Path(__file__).parents[2] / "docs"


def built_in(kind: Kind) -> list[str]:
    """The names of the plugins of a kind that come with gradhomog."""
    return [info.name for info in installed().list(kind) if info.distribution == "gradhomog"]


def text(page: str) -> str:
    """A page of `docs/` by its path there."""
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The contents of the fenced blocks in a language."""
    return re.findall(rf"^```{language} *\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def inline(text: str) -> set[str]:
    """Inline code outside of fenced blocks, in headings too."""
    return {" ".join(found.split()) for found in re.findall(r"`([^`]+)`", prose(text))}


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def row(text: str, name: str) -> str:
    """The row of a table whose first cell is a name in backticks; empty if there is none."""
    found = re.search(rf"^\| `{re.escape(name)}` \|.*$", text, re.MULTILINE)
    return found[0] if found else ""
