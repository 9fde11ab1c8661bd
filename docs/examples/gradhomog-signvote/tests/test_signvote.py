"""What `signvote` promises."""

import pytest
import torch

import gradhomog

ROWS = torch.tensor([[1.0, 4.0, 0.0], [2.0, -1.0, 3.0], [-9.0, -1.0, -5.0]])


def test_it_is_found_and_made_by_name() -> None:
    assert "signvote" in gradhomog.available()
    assert str(gradhomog.pipeline("signvote(threshold=0.5)")) == "signvote(threshold=0.5)"


def test_entries_against_the_majority_are_zeroed_and_a_tie_changes_nothing() -> None:
    direction = gradhomog.pipeline("signvote").combine(ROWS)
    torch.testing.assert_close(direction, torch.tensor([3.0, -2.0, -2.0]) / 3)


def test_a_majority_below_the_threshold_does_not_count() -> None:
    torch.testing.assert_close(gradhomog.pipeline("signvote(threshold=0.5)").combine(ROWS), ROWS.mean(0))


def test_rows_in_a_dict_are_treated_as_one_matrix() -> None:
    split = {"weight": ROWS[:, :2].reshape(3, 2, 1), "bias": ROWS[:, 2:]}
    direction = gradhomog.pipeline("signvote").combine(split)
    whole = gradhomog.pipeline("signvote").combine(ROWS)
    torch.testing.assert_close(torch.cat([direction["weight"].flatten(), direction["bias"]]), whole)


def test_the_rows_given_are_not_written_to() -> None:
    rows = ROWS.clone()
    gradhomog.pipeline("signvote").combine(rows)
    assert torch.equal(rows, ROWS)


def test_the_direction_is_differentiable_in_the_rows() -> None:
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    pipe = gradhomog.pipeline("signvote")
    assert torch.autograd.gradcheck(lambda given: pipe.combine(given, create_graph=True), (rows,))


@pytest.mark.parametrize("factor", [1e-18, 1e18])
def test_a_common_factor_of_the_rows_is_a_factor_of_the_direction(factor: float) -> None:
    pipe = gradhomog.pipeline("signvote")
    torch.testing.assert_close(pipe.combine(ROWS * factor) / factor, pipe.combine(ROWS))


@pytest.mark.parametrize("threshold", [-0.1, 1, float("nan"), "half"])
def test_a_threshold_out_of_range_is_refused(threshold: object) -> None:
    with pytest.raises(gradhomog.OptionError, match=r"`threshold` must be .*; got"):
        gradhomog.pipeline([("signvote", {"threshold": threshold})])
