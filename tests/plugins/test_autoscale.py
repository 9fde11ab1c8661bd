"""AutoScale against means by hand and a direct search for the best condition number; its warm-up by task."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import gradhomog
from gradhomog_plugins.autoscale import best_conditioned
from tests.plugins.rows import normal


def history(steps, sizes=(1.0, 30.0, 0.01)):
    return [
        normal(len(sizes), 8, seed=step) * torch.tensor(sizes, dtype=torch.float64)[:, None] for step in range(steps)
    ]


def weights(logarithms):
    found = np.exp(np.asarray(logarithms) - max(logarithms))
    return torch.from_numpy(found / found.mean())


def test_weights_are_inverse_geometric_means_of_the_norms_of_the_warmup_and_then_fixed():
    pipe, sums = gradhomog.pipeline("autoscale(warmup=4)"), [0.0] * 3
    for number, rows in enumerate(history(7)):
        expected = weights([total / min(max(number, 1), 4) for total in sums])
        result = pipe.homogenize(rows)
        torch.testing.assert_close(result.weights, expected)
        torch.testing.assert_close(result.direction[""], expected @ rows / 3)
        if number < 4:
            sums = [total - math.log(float(row.norm())) for total, row in zip(sums, rows, strict=True)]


@pytest.mark.parametrize("criterion", ["norms", "condition"])
def test_the_similarity_of_magnitudes_after_weighting_is_one_for_two_tasks(criterion):
    pipe, rows = gradhomog.pipeline(f"autoscale(criterion='{criterion}')"), normal(2, 8)
    pipe.combine(rows)
    sizes = pipe.homogenize(rows).weights * rows.norm(dim=1)
    torch.testing.assert_close(2 * sizes.prod() / sizes.square().sum(), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize("tasks", [3, 4, 6])
def test_the_condition_number_is_that_of_a_search_without_derivatives(tasks):
    for seed in range(3):
        rows = normal(tasks, tasks + 3, seed=seed)
        rows[0] += 2 * rows[1]
        gramian = (rows @ rows.T).numpy()
        norms = np.sqrt(gramian.diagonal())

        def condition(logs, gramian=gramian, norms=norms):
            scales = np.exp(logs) / norms
            return math.log(np.linalg.cond(scales[:, None] * gramian * scales))

        found = condition(best_conditioned(torch.from_numpy(gramian), 1e-12).numpy())
        options = {"maxfev": 20_000, "maxiter": 20_000, "xatol": 1e-8, "fatol": 1e-10, "adaptive": True}
        start = normal(tasks, seed=seed).numpy() * 0.3
        assert found <= minimize(condition, start, method="Nelder-Mead", options=options).fun + 1e-6
        assert found < condition(np.zeros(tasks)) - 1e-6  # equal norms are not the solution


def test_dependent_rows_have_weights_of_their_norms_with_either_criterion():
    rows = normal(3, 6)
    rows[2] = rows[0] - 3 * rows[1]
    expected, found = gradhomog.pipeline("autoscale"), gradhomog.pipeline("autoscale(criterion='condition')")
    for _ in range(2):
        torch.testing.assert_close(found.combine(rows), expected.combine(rows))


@pytest.mark.parametrize("criterion", ["norms", "condition"])
def test_factors_of_losses_have_no_effect_after_the_first_step(criterion):
    factors = torch.tensor([[4.0], [1e-9], [1e9]], dtype=torch.float64)
    plain, scaled = (gradhomog.pipeline(f"autoscale(warmup=2, criterion='{criterion}')") for _ in range(2))
    for number, rows in enumerate(history(4)):
        expected, found = plain.combine(rows), scaled.combine(factors * rows)
        if number:
            torch.testing.assert_close(found / found.norm(), expected / expected.norm())


def test_a_task_that_appears_later_has_a_warmup_of_its_own():
    pipe, rows = gradhomog.pipeline("autoscale(warmup=2)"), torch.diag(torch.tensor([2.0, 8.0, 1.0]).double())
    for _ in range(3):
        pipe.combine(rows[:2], domains=["a", "b"])
    found = pipe.homogenize(rows, domains=["a", "b", "c"]).weights  # w = 1/2, 1/8 and their geometric mean
    torch.testing.assert_close(found, weights([math.log(0.5), math.log(0.125), math.log(0.25)]))
    pipe.combine(rows * 100, domains=["a", "b", "c"])  # the second step of c, whose norms are now 1 and 100
    found = pipe.homogenize(rows, domains=["a", "b", "c"]).weights
    torch.testing.assert_close(found, weights([math.log(0.5), math.log(0.125), math.log(0.1)]))


@pytest.mark.parametrize("criterion", ["norms", "condition"])
def test_a_zero_row_is_not_measured(criterion):
    rows = torch.diag(torch.tensor([2.0, 0.0, 8.0, 1.0]).double())
    pipe = gradhomog.pipeline(f"autoscale(warmup=1, criterion='{criterion}')")
    pipe.combine(rows)
    rows[1, 1] = 4.0
    pipe.combine(rows)
    found = pipe.homogenize(rows).weights
    torch.testing.assert_close(found, weights([math.log(1 / 2), math.log(1 / 4), math.log(1 / 8), 0.0]))
