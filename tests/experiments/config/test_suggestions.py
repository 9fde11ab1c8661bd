"""What is suggested to whoever misspelt a name."""

from __future__ import annotations

import pytest

from gradhomog.experiments.config.suggestions import did_you_mean


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("maml", ""),
        ("Glyph_Pair", " Did you mean 'glyph_pairs'?"),
        ("REGRESION", " Did you mean 'Regression'?"),
        (7, ""),
    ],
)
def test_the_nearest_name_whatever_its_case_or_nothing(given, expected):
    assert did_you_mean(given, ["glyph_pairs", "Regression"]) == expected


def test_it_is_shown_as_its_caller_writes_names():
    assert did_you_mean("stpes", ["steps", "seeds"], "`train.{}`") == " Did you mean `train.steps`?"
