"""Directions at Pareto stationary points: strongly, strictly weakly and not stationary matrices.

A matrix is weakly stationary if Jᵀw = 0 for some w ≥ 0 that is not zero, strongly stationary if for some w > 0.
"""

import pytest
import torch

import gradhomog
from gradhomog.registry import installed
from tests.plugins.rows import BUILT_IN, normal

NON_CONFLICTING = [name for name in BUILT_IN if "non_conflicting" in installed().load("homogenizers", name)[1].traits]
# The mask excludes conflicts entry by entry, so it is zero at more points.
BY_INNER_PRODUCTS = [name for name in NON_CONFLICTING if name != "and_mask"]
# They are zero if any combination of rows is: the smallest improvement of a task counts.
WORST_TASK = ["cr_mogm(method='mgda', alpha=0)", "fairgrad", "mgda", "nash_mtl", "sdmgrad(regularization=1e-9)"]
# They project the mean of the rows, or each row, and stop only where every task is at its best.
PROJECTIONS = ["dualproj", "upgrad", "dcgd(variant='projection')", "dcgd(variant='average')"]
SIZES = [(2, 1), (3, 2), (5, 3), (6, 20)]  # tasks, dimensions


def strong(tasks, params, seed):
    """Rows that add up to zero with positive weights."""
    rows = normal(tasks, params, seed=seed)
    weights = 0.5 + normal(tasks, seed=seed + 1).abs()
    rows[-1] = -(weights[:-1] @ rows[:-1]) / weights[-1]
    return rows


def strictly_weak(tasks, params, seed):
    """Strongly stationary rows, and two more that all improve in the last coordinate."""
    found = torch.cat([strong(tasks, params, seed), normal(2, params, seed=seed + 2)])
    last = torch.tensor([0.0] * tasks + [0.5, 2.0], dtype=torch.float64)
    return torch.cat([found, last[:, None]], dim=1)


def not_stationary(tasks, params, seed):
    """Rows that all improve in the last coordinate."""
    last = 0.1 + normal(tasks, seed=seed + 3).abs()
    return torch.cat([normal(tasks, params, seed=seed), last[:, None]], dim=1)


def sampled(kind):
    return [(kind(*size, seed), (size, seed)) for size in SIZES for seed in range(0, 40, 4)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", dict.fromkeys([*BY_INNER_PRODUCTS, *WORST_TASK, *PROJECTIONS]))
def test_strongly_stationary_rows_give_zero(method, dtype):
    # Σ w_i ⟨g_i, d⟩ = 0 and ⟨g_i, d⟩ ≥ 0 imply ⟨g_i, d⟩ = 0, and d is a combination of the rows.
    for rows, case in sampled(strong):
        direction = gradhomog.pipeline(method).combine(rows.to(dtype))
        limit = 2e-3 if dtype == torch.float32 else 1e-6
        assert float(direction.norm() / rows.norm(dim=1).max()) < limit, case


@pytest.mark.parametrize("method", WORST_TASK)
def test_weakly_stationary_rows_give_zero_where_the_worst_task_counts(method):
    for rows, case in sampled(strictly_weak):
        direction = gradhomog.pipeline(method).combine(rows)
        assert float(direction.norm() / rows.norm(dim=1).max()) < 1e-6, case


@pytest.mark.parametrize("method", PROJECTIONS)
def test_projections_still_improve_a_task_at_strictly_weakly_stationary_points(method):
    for rows, case in sampled(strictly_weak):
        direction = gradhomog.pipeline(method).combine(rows)
        gains = rows @ direction / rows.norm(dim=1)
        assert float(gains.min()) > -1e-9, case
        assert float(gains[-2:].min()) > 1e-4, case


@pytest.mark.parametrize("method", [*WORST_TASK, *PROJECTIONS])
def test_without_stationarity_no_task_loses_and_all_gain_where_the_worst_task_counts(method):
    for rows, case in sampled(not_stationary):
        direction = gradhomog.pipeline(method).combine(rows)
        gains = rows @ direction / rows.norm(dim=1)
        assert float(gains.min()) > (0 if method in WORST_TASK else -1e-9), case
        assert float(direction[-1]) > 0, case
