"""Update the generated pages and parts of pages: `python -m tests.docs.generate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.docs import check_tables, command_help, pages, plugin_tables, public_names

COMMAND = "python -m tests.docs.generate"

PAGES: dict[str, Callable[[str], str]] = {
    "guide/check.md": check_tables.page,
    "reference/cli.md": command_help.page,
    "reference/plugins.md": plugin_tables.page,
    "reference/python.md": public_names.page,
}
"""For each page in `docs/`: its new text as a function of its previous text."""


def path(page: str) -> Path:
    return pages.DOCS / page


def main() -> None:
    for page, made in PAGES.items():
        text = pages.text(page) if path(page).exists() else ""
        if (current := made(text)) != text:
            path(page).write_text(current, encoding="utf-8")
            print(f"wrote docs/{page}")


if __name__ == "__main__":
    main()
