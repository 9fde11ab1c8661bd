"""Suggestions for misspelled names."""

import pytest

from gradhomog.errors import did_you_mean


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("maml", ""),
        ("Glyph_Pair", " Did you mean 'glyph_pairs'?"),
        ("REGRESION", " Did you mean 'Regression'?"),
        (7, ""),
    ],
)
def test_the_most_similar_name_is_suggested_ignoring_case(given, expected):
    assert did_you_mean(given, ["glyph_pairs", "Regression"]) == expected


def test_the_suggestion_is_formatted_with_the_template():
    assert did_you_mean("stpes", ["steps", "seeds"], "`train.{}`") == " Did you mean `train.steps`?"
