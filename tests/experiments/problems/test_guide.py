"""The page about multi-task problems shows their keys with the defaults that they have."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gradhomog.experiments.config.schema import load

PAGE = (Path(__file__).parents[3] / "docs" / "guide" / "multitask.md").read_text(encoding="utf-8")
SHOWN = [tomllib.loads(block) for block in re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown["problem"]["name"])
def test_the_page_shows_every_key_of_a_problem_and_what_else_it_sets(shown):
    name = shown["problem"]["name"]
    config = load(None, [f"problem.name={name}"]).to_dict()
    assert shown["problem"] == config["problem"]
    for table in ("network", "train"):
        assert shown.get(table, {}).items() <= config.get(table, {}).items()
        usual = load().to_dict()[table]
        own = {key: value for key, value in config.get(table, {}).items() if value != usual[key]}
        assert own.items() <= shown.get(table, {}).items()


def test_pairs_of_digits_have_the_keys_of_pairs_of_glyphs_but_those_of_rendering():
    glyphs, digits = (load(None, [f"problem.name={name}"]).to_dict() for name in ("glyph_pairs", "digit_pairs"))
    own = {"name", "script", "classes", "instances"}
    assert digits["problem"].items() - {("name", "digit_pairs")} == {
        (key, value) for key, value in glyphs["problem"].items() if key not in own
    }
    assert [digits[table] for table in ("network", "train")] == [glyphs[table] for table in ("network", "train")]
