"""Pipelines that need more than losses and rows are refused by the adapters of frameworks."""

from __future__ import annotations

import pytest

import gradhomog
from gradhomog import OptionError
from gradhomog_adapters._frameworks import check_pipeline


@pytest.mark.parametrize("text", ["rotograd", "rotate"])
def test_homogenizers_that_read_features_are_refused_before_training(text: str) -> None:
    with pytest.raises(OptionError, match=f"{text} reads features, which DeepXDE does not compute"):
        check_pipeline(gradhomog.pipeline(text), "DeepXDE")


def test_homogenizers_that_read_residuals_are_refused_before_training() -> None:
    with pytest.raises(OptionError, match="ntk reads residuals, which PINA does not pass on"):
        check_pipeline(gradhomog.pipeline("ntk"), "PINA")


def test_a_pipeline_is_required() -> None:
    with pytest.raises(OptionError, match="must be a pipeline"):
        check_pipeline("pcgrad", "PINA")  # type: ignore[arg-type]
