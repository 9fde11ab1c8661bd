"""The common form of the docstrings of the built-in homogenizers, and `docs/methods/formulas.toml`."""

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gradhomog.registry import installed
from tests.plugins.rows import BUILT_IN

FORMULAS = Path(__file__).parents[2] / "docs" / "methods" / "formulas.toml"
# The parts in their order; a paragraph that starts with none of the labels belongs to the part before it.
LABELS = (
    "Args:",
    "Use it when ",
    "Differentiable|Not differentiable",
    "State: ",
    "Cost: ",
    "Source: ",
    "Deviations: ",
    ">>> ",
)


def factory(name: str) -> Any:
    return installed().load("homogenizers", name)[1].factory


def paragraphs(name: str) -> list[str]:
    return (inspect.getdoc(factory(name)) or "").split("\n\n")


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_docstring_has_all_parts_in_order(name: str) -> None:
    text = paragraphs(name)
    labels = LABELS if inspect.signature(factory(name)).parameters else LABELS[1:]
    places = [[place for place, part in enumerate(text) if re.match(label, part)] for label in labels]
    assert [len(found) for found in places] == [1] * len(labels)
    assert places == sorted(places)
    assert places[0] == [2]
    assert places[-1] == [len(text) - 1]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_docstring_begins_with_one_sentence_and_the_formula(name: str) -> None:
    sentence, formula, *_ = paragraphs(name)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert all(line.startswith("    ") for line in formula.splitlines())


def test_every_homogenizer_has_a_formula_in_latex() -> None:
    formulas = tomllib.loads(FORMULAS.read_text(encoding="utf-8"))
    assert list(formulas) == sorted(BUILT_IN)
    for entry in formulas.values():
        assert entry.keys() <= {"formula", "symbols"}
        assert "$" not in entry["formula"]
        assert "\n" not in entry.get("symbols", "")


@pytest.mark.parametrize("name", BUILT_IN)
def test_braces_and_environments_of_a_formula_are_balanced(name: str) -> None:
    entry = tomllib.loads(FORMULAS.read_text(encoding="utf-8"))[name]
    for text in entry.values():
        depth = 0
        for brace in re.findall(r"(?<!\\)[{}]", text):
            depth += 1 if brace == "{" else -1
            assert depth >= 0
        assert depth == 0
        assert re.findall(r"\\begin\{(\w+)\}", text) == re.findall(r"\\end\{(\w+)\}", text)[::-1]
        assert text.count("$") % 2 == 0
