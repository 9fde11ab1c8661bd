"""`docs/guide/check.md` documents outcomes, options, public names and fixtures of the conformance kit."""

from __future__ import annotations

import argparse
import inspect
import typing

import pytest

from gradhomog import cli, testing
from gradhomog.testing import pytest_plugin
from gradhomog.testing.check_results import MARKS, Outcome
from tests.docs import pages

PAGE = pages.text("guide/check.md")


@pytest.mark.parametrize("outcome", typing.get_args(Outcome))
def test_every_outcome_is_explained_beside_its_mark(outcome: str) -> None:
    assert f"| {MARKS.get(outcome, '-')} | {outcome} |" in PAGE


def test_every_option_of_the_command_is_on_the_page() -> None:
    [commands] = [action for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction)]
    command = commands.choices["check"]
    options = {text for action in command._actions for text in action.option_strings if text.startswith("--")}
    assert {option for option in options - {"--help"} if f"{option}" not in PAGE} == set()


@pytest.mark.parametrize(
    "name", [name for name in testing.__all__ if not inspect.isclass(getattr(testing, name)) and name != "Outcome"]
)
def test_every_function_of_the_kit_is_on_the_page(name: str) -> None:
    assert name in PAGE


@pytest.mark.parametrize("fixture", [name for name in vars(pytest_plugin) if name.startswith("gradhomog_")])
def test_every_fixture_is_on_the_page(fixture: str) -> None:
    assert f"- `{fixture}" in PAGE
