"""AND-mask against the authors' loop written out, counts of signs, and its properties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog.testing import jacobians
from tests.plugins.rows import both_dtypes, normal


def combine(rows, **options):
    return gradhomog.pipeline([("and_mask", options)]).combine(rows)


def domainbed(rows, tau):
    """`mask_grads` of DomainBed for the rows of one tensor, entry by entry."""
    tasks, kept = len(rows), 0
    direction = torch.zeros_like(rows[0])
    for place in range(rows[0].numel()):
        entries = [float(row.flatten()[place]) for row in rows]
        balance = sum((entry > 0) - (entry < 0) for entry in entries)
        if abs(balance) / tasks >= tau:
            kept += 1
            direction.view(-1)[place] = sum(entries) / tasks
    return direction / (1e-10 + kept / rows[0].numel())


@both_dtypes
@pytest.mark.parametrize("tau", [0.0, 0.2, 0.5, 1.0])
def test_for_one_tensor_rescaling_is_that_of_domainbed(tau, dtype):
    rows = normal(5, 3, 4, dtype=dtype)
    torch.testing.assert_close(combine({"a": rows}, tau=tau, rescale=True)["a"], domainbed(rows, tau))


@given(jacobians(tasks=(1, 6)), st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.6, 1.0]))
def test_without_rescaling_the_mean_is_kept_where_enough_signs_agree(rows, tau):
    balance = (rows > 0).sum(0) - (rows < 0).sum(0)
    expected = torch.where(balance.abs().double() / len(rows) >= tau, rows.mean(0), 0.0)
    torch.testing.assert_close(combine(rows, tau=tau), expected)


@pytest.mark.parametrize("tasks", [*range(1, 8), 10, 30])
def test_a_threshold_that_is_a_share_of_the_tasks_includes_this_share(tasks):
    # 0.1 · 30 is above 3 in floating point.
    rows = torch.ones(tasks, tasks + 1)
    for negative in range(tasks + 1):
        rows[:negative, negative] = -1
    for count in range(tasks + 1):
        kept = combine(rows + 0.0, tau=count / tasks) != 0
        shares = (tasks - 2 * torch.arange(tasks + 1)).abs()
        assert torch.equal(kept, (shares >= count) & (shares > 0))


def test_rescaling_over_all_parameters_does_not_depend_on_their_division_into_tensors():
    rows = normal(3, 40)
    whole = combine(rows, rescale=True)
    parts = combine({"a": rows[:, :12].reshape(3, 3, 4), "b": rows[:, 12:]}, rescale=True)
    torch.testing.assert_close(torch.cat([parts["a"].flatten(), parts["b"]]), whole)
    kept = rows.sign().sum(0).abs() == 3
    torch.testing.assert_close(whole, torch.where(kept, rows.mean(0), 0.0) * 40 / kept.sum())


@pytest.mark.parametrize("rescale", [False, True])
def test_coordinates_without_gradient_do_not_change_the_length(rescale):
    rows = torch.tensor([2.0, 0.0, -1.0, 0.0]).expand(3, 4)
    torch.testing.assert_close(combine(rows, rescale=rescale), rows[0])
    torch.testing.assert_close(combine(rows, tau=0, rescale=rescale), rows[0])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_mean_of_rows_near_the_end_of_float32_is_finite(sign):
    rows = torch.tensor([[3e38, 2e38], [3e38, 2e38]]) * sign
    torch.testing.assert_close(combine(rows), rows[0])
