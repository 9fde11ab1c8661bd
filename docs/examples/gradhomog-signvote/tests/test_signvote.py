"""Tests of `signvote`."""

from collections.abc import Callable

import pytest
import torch

import gradhomog
from gradhomog.testing import parametrize_with_checks

ROWS = torch.tensor([[1.0, 4.0, 0.0], [2.0, -1.0, 3.0], [-9.0, -1.0, -5.0]])


@parametrize_with_checks(["signvote", "signvote(threshold=0.5)"])
def test_it_conforms(check: Callable[[], None]) -> None:
    check()


def test_it_is_available_by_name() -> None:
    assert "signvote" in gradhomog.available()
    assert str(gradhomog.pipeline("signvote(threshold=0.5)")) == "signvote(threshold=0.5)"


def test_entries_with_the_minority_sign_become_zero_and_ties_stay() -> None:
    direction = gradhomog.pipeline("signvote").combine(ROWS)
    torch.testing.assert_close(direction, torch.tensor([3.0, -2.0, -2.0]) / 3)


def test_a_majority_below_the_threshold_has_no_effect() -> None:
    torch.testing.assert_close(gradhomog.pipeline("signvote(threshold=0.5)").combine(ROWS), ROWS.mean(0))


@pytest.mark.parametrize("threshold", [-0.1, 1, float("nan"), "half"])
def test_a_threshold_out_of_range_raises(threshold: object) -> None:
    with pytest.raises(gradhomog.OptionError, match="`threshold` must be"):
        gradhomog.pipeline([("signvote", {"threshold": threshold})])
