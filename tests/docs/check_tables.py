"""Generator of the tables of checks in `docs/guide/check.md`, between two marks."""

from __future__ import annotations

import re

from gradhomog.testing import checks
from gradhomog.testing.kits import MODULES

BEGIN, END = "<!-- generated: checks -->", "<!-- end of what is generated -->"


def page(text: str) -> str:
    """The page with current tables."""
    before, between, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (between and end):
        raise ValueError(f"the page must hold {BEGIN} and {END}, with the tables between them")
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def tables() -> str:
    """One table for each kind of plugin."""
    lines: list[str] = []
    for kind in MODULES:
        lines += ["", f"### {kind.capitalize()}", "", "| check | property | required of |", "|---|---|---|"]
        for check in checks(kind):
            required = "all" if check.claim is None else f"the trait `{check.claim}`"
            lines.append(f"| `{check.name}` | {_cell(check.summary)} | {required} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
