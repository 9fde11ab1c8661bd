"""SAGO against the authors' formula entry by entry, its protection of the primary task, and its primary task."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog.testing import jacobians
from tests.plugins.rows import both_dtypes, normal


def combine(rows, domains=None, **options):
    return gradhomog.pipeline([("sago", options)]).combine(rows, domains=domains)


def authors(primary, auxiliary, agreeing):
    """`_apply_sago` and `_apply_sago_prefer_retain` of the authors' code with weights of one, entry by entry."""
    result = torch.zeros_like(primary)
    for place, (retained, forgotten) in enumerate(zip(primary.tolist(), auxiliary.tolist(), strict=True)):
        if retained * forgotten < 0:
            result[place] = retained
        else:
            result[place] = forgotten if agreeing == "auxiliary" else forgotten + retained
    return result


@both_dtypes
@pytest.mark.parametrize("agreeing", ["auxiliary", "both"])
def test_two_rows_give_the_authors_direction_in_the_papers_scale(agreeing, dtype):
    rows = normal(2, 300, dtype=dtype)
    rows[0, :3] = 0
    found = combine(rows, agreeing=agreeing, **({"scale": "paper"} if agreeing == "both" else {}))
    torch.testing.assert_close(found, authors(*rows, agreeing))


@given(jacobians(tasks=(2, 5), params=(1, 8)), st.sampled_from(["auxiliary", "both"]), st.data())
def test_no_entry_has_the_opposite_sign_of_the_primary_rows_entry(rows, agreeing, data):
    primary = data.draw(st.integers(0, len(rows) - 1))
    found = combine(rows, agreeing=agreeing, primary=primary)
    assert bool((found.sign() * rows[primary].sign() >= 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_signs_of_entries_whose_product_underflows_are_compared(dtype):
    tiny = torch.finfo(dtype).tiny
    rows = torch.tensor([[tiny, tiny], [2 * tiny, -2 * tiny]], dtype=dtype)
    torch.testing.assert_close(combine(rows), torch.tensor([2 * tiny, tiny], dtype=dtype), rtol=0, atol=0)


def test_each_auxiliary_row_is_compared_with_the_primary_row():
    rows = torch.tensor([[-1.0, 2.0], [1.0, 1.0], [3.0, -4.0]])
    torch.testing.assert_close(combine(rows, primary=1), torch.tensor([(1.0 + 3.0) / 2, (2.0 + 1.0) / 2]))
    torch.testing.assert_close(combine(rows, primary=1, agreeing="both"), torch.tensor([4.0 / 3, 3.0 / 3]))


def test_a_parameter_that_the_auxiliary_loss_does_not_depend_on_is_trained():
    assert combine(torch.tensor([[2.0, 3.0], [0.0, 4.0]])).tolist() == [2.0, 4.0]


def test_several_primary_tasks_count_as_their_mean():
    rows = torch.tensor([[5.0, 1.0], [1.0, 2.0], [-2.0, 3.0]])
    domains = ["forget", "retain", "retain"]
    torch.testing.assert_close(combine(rows, domains=domains, primary="retain"), torch.tensor([-0.5, 1.0]))
    assert combine(rows[1:], domains=["retain"] * 2, primary="retain").tolist() == [-0.5, 2.5]


@pytest.mark.parametrize(("agreeing", "expected"), [("auxiliary", [1.0, -2.0]), ("both", [0.5, -1.0])])
def test_an_opposite_row_leaves_the_primary_row(agreeing, expected):
    row = torch.tensor([1.0, -2.0])
    assert combine(torch.stack([row, -3 * row]), agreeing=agreeing).tolist() == expected
