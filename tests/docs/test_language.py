"""Docstrings, comments, messages, names and pages avoid the words of `tests.docs.language`."""

import doctest

import pytest

from tests.docs import console, language, test_hooks

pytestmark = pytest.mark.slow


def test_docstrings_comments_messages_names_and_pages_avoid_the_words() -> None:
    files = language.project_files()
    assert {path.name for path in files} >= {"README.md", "pcgrad.py", "conftest.py"}
    assert [str(finding) for path in files for finding in language.of_file(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        "The user is told which option is wrong.",
        "What is left out has a default.",
        "Whether the step is finite.",
        "The module of one's own.",
    ],
)
def test_a_sentence_with_words_to_avoid_is_found(text: str) -> None:
    assert list(language.findings(text, "a page"))


@pytest.mark.parametrize("module", [console, test_hooks], ids=lambda module: module.__name__)
def test_doctests_pass(module: object) -> None:
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert (failed, tried > 0) == (0, True)
