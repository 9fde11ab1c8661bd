"""Generator of `docs/reference/cli.md`: the output of `--help` for every command."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gradhomog import cli

WIDTH = 120

HEAD = """\
# The command line

The output of `gradhomog COMMAND --help` for every command. `--json` prints data for programs; progress and errors go to
standard error. The guide describes their use: [compare](../guide/compare.md),
[profile](../guide/profile.md), [check](../guide/check.md), [write a homogenizer](../guide/write-a-homogenizer.md).
"""


def page(text: str = "") -> str:
    """The whole page, independent of its previous text."""
    with _columns(WIDTH):
        parser = cli.parser()
        shown = [("gradhomog", parser), *((f"gradhomog {name}", command) for name, command in commands(parser).items())]
        parts = [f"## `{name}`\n\n```text\n{part.format_help().rstrip()}\n```\n" for name, part in shown]
    return "\n".join([HEAD, *parts])


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by name, in the order of `gradhomog --help`."""
    [choices] = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(choices)


@contextmanager
def _columns(width: int) -> Iterator[None]:
    """Within the context argparse formats for a terminal of this width: it leaves two columns free."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width + 2)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
