"""Pipelines from text, lists and objects; the text of a pipeline makes it again."""

from __future__ import annotations

import pytest

import gradhomog
from gradhomog import OptionError
from tests.pipelines.members import Weights


@pytest.mark.parametrize("text", ["none", "pcgrad", 'static(weights=[1, 2.5], scale="paper") + pcgrad(order="fixed")'])
def test_the_text_of_a_pipeline_makes_it_again(text):
    assert str(gradhomog.pipeline(str(gradhomog.pipeline(text)))) == text


@pytest.mark.parametrize("what", [["pcgrad", ("static", {"weights": [1, 2]})], ["pcgrad + static(weights=[1, 2])"]])
def test_lists_and_text_make_the_same_pipeline(what):
    assert str(gradhomog.pipeline(what)) == "pcgrad + static(weights=[1, 2])"


def test_other_inputs_are_refused():
    with pytest.raises(OptionError, match="made of names"):
        gradhomog.pipeline([42])
    with pytest.raises(OptionError, match="'none' is the empty pipeline and cannot be combined"):
        gradhomog.pipeline(["none", "pcgrad"])
    with pytest.raises(OptionError, match="the pipeline has nonfinite='raise'; it cannot be 'drop' too"):
        gradhomog.pipeline(gradhomog.pipeline("pcgrad"), nonfinite="drop")
    with pytest.raises(OptionError, match="`nonfinite` must be 'raise' or 'drop'"):
        gradhomog.pipeline("none", nonfinite="ignore")


def test_an_object_twice_in_a_pipeline_is_refused():
    one = Weights(1, 1)
    with pytest.raises(OptionError, match="same homogenizer object twice"):
        gradhomog.pipeline([one, one])
