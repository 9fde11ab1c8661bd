"""Docstrings, comments, messages, names and pages avoid the words of `tests.docs.language`."""

import doctest

import pytest

from tests.docs import console, language, test_hooks
from tests.docs.language import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("folder", ["gradhomog", "plugins", "adapters", "tests", "docs"])
def test_docstrings_comments_messages_and_names_avoid_the_words(folder: str) -> None:
    modules = [path for path in language.project_files() if path.suffix == ".py" and path.is_relative_to(ROOT / folder)]
    assert modules
    assert [str(finding) for path in modules for finding in language.of_file(path)] == []


def test_pages_avoid_the_words() -> None:
    pages = [path for path in language.project_files() if path.suffix != ".py"]
    assert any(path.name == "README.md" for path in pages)
    assert [str(finding) for path in pages for finding in language.of_file(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        "The user is told which option is wrong.",
        "What is left out has a default.",
        "Whether the step is finite.",
        "It is asked for by name.",
        "The module of one's own.",
    ],
)
def test_a_sentence_with_words_to_avoid_is_found(text: str) -> None:
    assert list(language.findings(text, "a page"))


@pytest.mark.parametrize("module", [console, test_hooks], ids=lambda module: module.__name__)
def test_doctests_pass(module: object) -> None:
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert (failed, tried > 0) == (0, True)
