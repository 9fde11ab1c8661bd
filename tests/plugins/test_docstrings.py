"""The common form of the docstrings of the built-in homogenizers, and `docs/methods/formulas.toml`."""

import inspect
import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

from gradhomog.registry import installed
from tests.plugins.rows import BUILT_IN

FORMULAS = Path(__file__).parents[2] / "docs" / "methods" / "formulas.toml"

# The parts in their order; a paragraph that starts with none of the labels belongs to the part before it.
LABELS = (
    "Args:", "Use it when ", "Differentiable|Not differentiable", "State: ", "Cost: ", "Source: ", "Deviations: ",
    ">>> ",
)  # fmt: skip


def factory(name: str) -> Any:
    return installed().load("homogenizers", name)[1].factory


def paragraphs(name: str) -> list[str]:
    return (inspect.getdoc(factory(name)) or "").split("\n\n")


def has_all_parts_in_order(name: str) -> bool:
    text = paragraphs(name)
    labels = LABELS if inspect.signature(factory(name)).parameters else LABELS[1:]
    found = [[place for place, part in enumerate(text) if re.match(label, part)] for label in labels]
    if any(len(places) != 1 for places in found):
        return False
    return found == sorted(found) and found[0] == [2] and found[-1] == [len(text) - 1]


def begins_with_a_sentence_and_a_formula(name: str) -> bool:
    sentence, formula, *_ = paragraphs(name)
    return "\n" not in sentence and sentence.endswith(".") and all(x.startswith("    ") for x in formula.splitlines())


def test_docstrings_have_all_parts_in_order() -> None:
    assert [name for name in BUILT_IN if not has_all_parts_in_order(name)] == []


def test_docstrings_begin_with_one_sentence_and_the_formula() -> None:
    assert [name for name in BUILT_IN if not begins_with_a_sentence_and_a_formula(name)] == []


def test_every_homogenizer_has_a_formula_in_latex() -> None:
    formulas = tomllib.loads(FORMULAS.read_text(encoding="utf-8"))
    assert list(formulas) == sorted(BUILT_IN)
    for entry in formulas.values():
        assert entry.keys() <= {"formula", "symbols"}
        assert "$" not in entry["formula"]
        assert "\n" not in entry.get("symbols", "")


def test_braces_and_environments_of_formulas_are_balanced() -> None:
    for name, entry in tomllib.loads(FORMULAS.read_text(encoding="utf-8")).items():
        for text in entry.values():
            depths = list(itertools.accumulate(1 if b == "{" else -1 for b in re.findall(r"(?<!\\)[{}]", text)))
            assert min(depths, default=0) >= 0, name
            assert depths[-1:] in ([], [0]), name
            assert re.findall(r"\\begin\{(\w+)\}", text) == re.findall(r"\\end\{(\w+)\}", text)[::-1], name
            assert text.count("$") % 2 == 0, name
