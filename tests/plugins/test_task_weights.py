"""Weights by task in upgrad, dualproj, aligned_mtl and config: against least squares and decompositions of the rows."""

import pytest
import scipy.linalg
import torch
from hypothesis import given

import gradhomog
from gradhomog import OptionError
from gradhomog.testing import jacobians
from tests.plugins.rows import nearest_without_conflict, normal, units

METHODS = ["upgrad", "dualproj", "aligned_mtl", "config"]
PREFERRED = {"a": 5, "*": 1}
NAMES = ["a", "b", "c"]


def upgrad(rows, weights):
    return weights @ torch.stack([nearest_without_conflict(rows, row) for row in rows])


def dualproj(rows, weights):
    return nearest_without_conflict(rows, weights @ rows)


def aligned_mtl(rows, weights):
    left, values, right = torch.linalg.svd(rows, full_matrices=False)
    return values.min() * weights @ left @ right


def config(rows, weights):
    direction = torch.from_numpy(scipy.linalg.lstsq(units(rows).numpy(), weights.numpy())[0])
    direction = direction / direction.norm()
    return (rows @ direction).mean() * direction


@pytest.mark.parametrize("oracle", [upgrad, dualproj, aligned_mtl, config])
def test_the_direction_is_the_papers_formula_with_weights_of_sum_one(oracle):
    for seed in range(10):
        rows = normal(3, 8, seed=seed) * torch.tensor([[0.1], [1.0], [10.0]])
        found = gradhomog.pipeline([(oracle.__name__, {"weights": PREFERRED})]).combine(rows, domains=NAMES)
        expected = oracle(rows, torch.tensor([5.0, 1, 1], dtype=torch.float64) / 7)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", METHODS)
@given(rows=jacobians(tasks=(2, 5)))
def test_equal_weights_are_the_default_and_a_task_of_weight_zero_is_still_a_constraint(method, rows):
    plain = gradhomog.pipeline(method).combine(rows)
    size = float(rows.norm(dim=1).max())
    equal = gradhomog.pipeline([(method, {"weights": [2.0] * len(rows)})]).combine(rows)
    torch.testing.assert_close(equal, plain, rtol=1e-9, atol=1e-12 * size)
    if method in ("upgrad", "dualproj"):
        without = gradhomog.pipeline([(method, {"weights": [0.0] + [1.0] * (len(rows) - 1)})]).combine(rows)
        assert float((rows @ without).min()) >= -1e-6 * size**2


@pytest.mark.parametrize("method", ["upgrad", "dualproj"])
def test_where_no_rows_conflict_the_step_is_that_of_static_weights_beside_absent_tasks_too(method):
    rows = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
    pipes = [gradhomog.pipeline([(name, {"weights": PREFERRED | {"d": 2}})]) for name in (method, "static")]
    for tasks in (slice(0, 3), slice(0, 2)):  # "c" is absent from the second step, and "d" from both
        found, expected = (pipe.combine(rows[tasks], domains=NAMES[tasks]) for pipe in pipes)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("method", METHODS)
def test_weights_that_are_all_zero_or_negative_raise(method):
    with pytest.raises(OptionError, match="`weights` must not all be zero"):
        gradhomog.pipeline([(method, {"weights": [0.0, 0.0]})]).combine(torch.eye(2))
    with pytest.raises(OptionError, match="`weights` must be"):
        gradhomog.pipeline([(method, {"weights": [1.0, -1.0]})])
