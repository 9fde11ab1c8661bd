"""AND-mask and SAND-mask against DomainBed's loops written out, counts of signs, and their limits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog.testing import jacobians
from tests.plugins.rows import both_dtypes, combine_in_tensors, normal


def combine(method, rows, **options):
    return gradhomog.pipeline([(method, options)]).combine(rows)


def domainbed(rows, tau, k=None, rescale=True):
    """`mask_grads` of DomainBed for the rows of one tensor, entry by entry: of the AND-mask without `k`."""
    tasks, masks = len(rows), []
    direction = torch.zeros_like(rows[0])
    for place in range(rows[0].numel()):
        entries = [float(row.flatten()[place]) for row in rows]
        mean = sum(entries) / tasks
        agreement = abs(sum((entry > 0) - (entry < 0) for entry in entries)) / tasks
        if k is None:
            masks.append(float(agreement >= tau))
        else:
            variance = sum((entry - mean) ** 2 for entry in entries) / (tasks - 1)
            masks.append(max(0.0, math.tanh(k / variance * (agreement - tau))))
        direction.view(-1)[place] = masks[-1] * mean
    return direction / (1e-10 + sum(masks) / len(masks)) if rescale else direction


@both_dtypes
@pytest.mark.parametrize("tau", [0.0, 0.2, 0.5, 1.0])
def test_for_one_tensor_rescaling_of_the_and_mask_is_that_of_domainbed(tau, dtype):
    rows = normal(5, 3, 4, dtype=dtype)
    torch.testing.assert_close(combine("and_mask", {"a": rows}, tau=tau, rescale=True)["a"], domainbed(rows, tau))


@both_dtypes
@pytest.mark.parametrize(("tau", "k"), [(0.0, 0.1), (0.3, 1.0), (0.5, 10.0), (0.9, 0.01)])
def test_for_one_tensor_whose_mean_square_is_one_the_sand_mask_is_that_of_domainbed(tau, k, dtype):
    rows = normal(5, 3, 4)
    rows = (rows / rows.square().mean().sqrt()).to(dtype)
    found = combine("sand_mask", {"a": rows}, tau=tau, k=k, rescale=True)["a"]
    torch.testing.assert_close(found, domainbed(rows, tau, k))


@both_dtypes
def test_k_is_in_units_of_the_inverse_mean_square_of_all_entries(dtype):
    rows = {"a": 100 * normal(4, 6, dtype=dtype), "b": normal(4, 3, 5, seed=1, dtype=dtype)}
    square = float(torch.cat([value.flatten() for value in rows.values()]).square().mean())
    found = combine("sand_mask", rows, tau=0.2, k=0.7)
    for name, value in rows.items():
        torch.testing.assert_close(found[name], domainbed(value, 0.2, 0.7 * square, rescale=False))


@given(jacobians(tasks=(1, 6)), st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.6, 1.0]))
def test_without_rescaling_the_mean_is_kept_where_enough_signs_agree(rows, tau):
    balance = ((rows > 0).sum(0) - (rows < 0).sum(0)).abs().double() / len(rows)
    expected = torch.where(balance >= tau, rows.mean(0), 0.0)
    torch.testing.assert_close(combine("and_mask", rows, tau=tau), expected)


@given(jacobians(tasks=(1, 5), zero=False))
def test_a_large_k_keeps_the_mean_where_the_signs_agree_by_more_than_tau(rows):
    balance = ((rows > 0).sum(0) - (rows < 0).sum(0)).abs().double() / len(rows)
    expected = torch.where(balance > 0.4, rows.mean(0), 0.0)
    torch.testing.assert_close(combine("sand_mask", rows, tau=0.4, k=1e12), expected)


@pytest.mark.parametrize("tasks", [*range(1, 8), 10, 30])
def test_a_threshold_that_is_a_share_of_the_tasks_includes_this_share(tasks):
    # 0.1 · 30 is above 3 in floating point.
    rows = torch.ones(tasks, tasks + 1)
    for negative in range(tasks + 1):
        rows[:negative, negative] = -1
    for count in range(tasks + 1):
        kept = combine("and_mask", rows + 0.0, tau=count / tasks) != 0
        shares = (tasks - 2 * torch.arange(tasks + 1)).abs()
        assert torch.equal(kept, (shares >= count) & (shares > 0))


@pytest.mark.parametrize("text", ["and_mask({})", "sand_mask(k=0.3{})"])
def test_rescaling_over_all_parameters_does_not_depend_on_their_division_into_tensors(text):
    rows, pipe = normal(3, 40), gradhomog.pipeline(text.format(", rescale=true").replace("(, ", "("))
    torch.testing.assert_close(combine_in_tensors(pipe, rows), pipe.combine(rows))
    plain = gradhomog.pipeline(text.format("")).combine(rows)
    torch.testing.assert_close(pipe.combine(rows), plain * 40 / (plain / rows.mean(0)).sum())


@pytest.mark.parametrize("rescale", [False, True])
def test_coordinates_without_gradient_do_not_change_the_length(rescale):
    rows = torch.tensor([2.0, 0.0, -1.0, 0.0]).expand(3, 4)
    torch.testing.assert_close(combine("and_mask", rows, rescale=rescale), rows[0])
    torch.testing.assert_close(combine("and_mask", rows, tau=0, rescale=rescale), rows[0])


@pytest.mark.parametrize(("method", "options"), [("and_mask", {}), ("sand_mask", {"k": 1e3})])
@pytest.mark.parametrize("size", [1e-40, 2e38, -2e38])
def test_rows_near_the_ends_of_float32_have_finite_directions(method, options, size):
    rows = torch.tensor([[1.0, 1.5], [1.5, 1.5]]) * size
    expected = torch.tensor([1.25, 1.5]) * size  # both masks are one up to float32
    torch.testing.assert_close(combine(method, rows, **options), expected, rtol=1e-3, atol=0)


def test_blocks_of_columns_have_no_effect_on_the_sand_mask():
    rows = normal(3, 70_000, dtype=torch.float32)  # three blocks
    order = torch.randperm(70_000, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(combine("sand_mask", rows[:, order], k=0.3), combine("sand_mask", rows, k=0.3)[order])
