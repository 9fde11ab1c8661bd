"""SAND-mask against DomainBed's loop written out, its limits, and derivatives through the mask."""

import math

import pytest
import torch
from hypothesis import given

import gradhomog
from gradhomog.testing import jacobians
from tests.plugins.rows import both_dtypes, normal


def combine(rows, create_graph=False, **options):
    return gradhomog.pipeline([("sand_mask", options)]).combine(rows, create_graph=create_graph)


def domainbed(rows, tau, k, rescale=True):
    """`mask_grads` of DomainBed for the rows of one tensor, entry by entry."""
    tasks, masks = len(rows), []
    direction = torch.zeros_like(rows[0])
    for place in range(rows[0].numel()):
        entries = [float(row.flatten()[place]) for row in rows]
        mean = sum(entries) / tasks
        variance = sum((entry - mean) ** 2 for entry in entries) / (tasks - 1)
        agreement = abs(sum((entry > 0) - (entry < 0) for entry in entries)) / tasks
        masks.append(max(0.0, math.tanh(k / variance * (agreement - tau))))
        direction.view(-1)[place] = masks[-1] * mean
    return direction / (1e-10 + sum(masks) / len(masks)) if rescale else direction


@both_dtypes
@pytest.mark.parametrize(("tau", "k"), [(0.0, 0.1), (0.3, 1.0), (0.5, 10.0), (0.9, 0.01)])
def test_for_one_tensor_whose_mean_square_is_one_it_is_domainbed(tau, k, dtype):
    rows = normal(5, 3, 4)
    rows = (rows / rows.square().mean().sqrt()).to(dtype)
    torch.testing.assert_close(combine({"a": rows}, tau=tau, k=k, rescale=True)["a"], domainbed(rows, tau, k))


@both_dtypes
def test_k_is_in_units_of_the_inverse_mean_square_of_all_entries(dtype):
    rows = {"a": 100 * normal(4, 6, dtype=dtype), "b": normal(4, 3, 5, seed=1, dtype=dtype)}
    square = float(torch.cat([value.flatten() for value in rows.values()]).square().mean())
    found = combine(rows, tau=0.2, k=0.7)
    for name, value in rows.items():
        torch.testing.assert_close(found[name], domainbed(value, 0.2, 0.7 * square, rescale=False))


@given(jacobians(tasks=(1, 5), zero=False))
def test_a_large_k_keeps_the_mean_where_the_signs_agree_by_more_than_tau(rows):
    balance = ((rows > 0).sum(0) - (rows < 0).sum(0)).abs().double() / len(rows)
    expected = torch.where(balance > 0.4, rows.mean(0), 0.0)
    torch.testing.assert_close(combine(rows, tau=0.4, k=1e12), expected)


def test_rescaling_over_all_parameters_does_not_depend_on_their_division_into_tensors():
    rows = normal(3, 40)
    whole = combine(rows, k=0.3, rescale=True)
    parts = combine({"a": rows[:, :12].reshape(3, 3, 4), "b": rows[:, 12:]}, k=0.3, rescale=True)
    torch.testing.assert_close(torch.cat([parts["a"].flatten(), parts["b"]]), whole)
    plain = combine(rows, k=0.3)
    torch.testing.assert_close(whole, plain * 40 / (plain / rows.mean(0)).sum())


def test_blocks_of_columns_have_no_effect():
    rows = normal(3, 70_000, dtype=torch.float32)  # three blocks
    order = torch.randperm(70_000, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(combine(rows[:, order], k=0.3), combine(rows, k=0.3)[order])


@pytest.mark.parametrize("size", [1e-40, 2e38])
def test_rows_near_the_ends_of_float32_have_finite_directions(size):
    rows = torch.tensor([[1.0, 1.5], [1.5, 1.5]]) * size
    expected = torch.tensor([1.25, 1.5]) * size  # both masks are one up to float32
    torch.testing.assert_close(combine(rows, k=1e3), expected, rtol=1e-3, atol=0)
