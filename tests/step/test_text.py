"""Pipelines from text, lists and objects; the text of a pipeline creates an equal pipeline."""

import pytest

import gradhomog
from gradhomog import OptionError
from tests.step.members import Weights


@pytest.mark.parametrize("text", ["none", "pcgrad", 'static(weights=[1, 2.5], scale="paper") + pcgrad(order="fixed")'])
def test_the_text_of_a_pipeline_creates_an_equal_pipeline(text):
    assert str(gradhomog.pipeline(str(gradhomog.pipeline(text)))) == text


@pytest.mark.parametrize("value", [["pcgrad", ("static", {"weights": [1, 2]})], ["pcgrad + static(weights=[1, 2])"]])
def test_lists_and_text_create_the_same_pipeline(value):
    assert str(gradhomog.pipeline(value)) == "pcgrad + static(weights=[1, 2])"


def test_invalid_inputs_raise():
    with pytest.raises(OptionError, match="'none' is the empty pipeline and cannot be combined"):
        gradhomog.pipeline(["none", "pcgrad"])
    with pytest.raises(OptionError, match="`nonfinite` must be 'raise', as in the pipeline; got 'drop'"):
        gradhomog.pipeline(gradhomog.pipeline("pcgrad"), nonfinite="drop")
    with pytest.raises(OptionError, match="`nonfinite` must be 'raise' or 'drop'"):
        gradhomog.pipeline("none", nonfinite="ignore")


def test_an_object_twice_in_a_pipeline_raises():
    one = Weights(1, 1)
    with pytest.raises(OptionError, match="same homogenizer object twice"):
        gradhomog.pipeline([one, one])
