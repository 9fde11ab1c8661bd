"""Generated pages are current, and their generators work as documented."""

from __future__ import annotations

import difflib
import doctest
import itertools

import pytest

from gradhomog import cli
from gradhomog.registry import Registry
from gradhomog.testing import checks
from gradhomog.testing.kits import MODULES
from tests.docs import check_tables, command_help, console, generate, pages, plugin_tables, signatures


@pytest.mark.parametrize("page", generate.PAGES)
def test_a_generated_page_is_current(page: str) -> None:
    written = pages.text(page)
    made = generate.PAGES[page](written)
    if written != made:
        change = difflib.unified_diff(written.splitlines(), made.splitlines(), "in the tree", "generated", lineterm="")
        shown = "\n".join(itertools.islice(change, 40))
        pytest.fail(f"docs/{page} is not current. Run: {generate.COMMAND}\n{shown}", pytrace=False)


def test_the_help_of_every_command_is_shown() -> None:
    text = pages.text("reference/cli.md")
    assert all(f"## `gradhomog {name}`" in text for name in command_help.commands(cli.parser()))
    assert len(command_help.commands(cli.parser())) == len(cli.COMMANDS)


@pytest.mark.parametrize("kind", MODULES)
def test_every_built_in_plugin_has_an_entry(kind: str) -> None:
    text = pages.text("reference/plugins.md")
    section = text.split(f"\n## {kind.capitalize()}\n")[1].split("\n## ")[0]
    built_in = [info.name for info in Registry().list(kind) if info.distribution == "gradhomog"]  # type: ignore[arg-type]
    assert built_in
    assert [name for name in built_in if f"\n### `{name}`\n" not in section] == []


def test_only_the_text_between_the_marks_is_generated() -> None:
    page = f"before\n{check_tables.BEGIN}\noutdated tables\n{check_tables.END}\nafter\n"
    made = check_tables.page(page)
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert "outdated" not in made
    assert all(f"| `{check.name}` |" in made for check in checks("homogenizers"))


@pytest.mark.parametrize("module", [console, plugin_tables, signatures], ids=lambda module: module.__name__)
def test_doctests_of_the_generators_pass(module: object) -> None:
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert (failed, tried > 0) == (0, True)
