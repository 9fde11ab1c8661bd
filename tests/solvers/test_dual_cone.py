"""Projections onto the dual cone: optimality conditions, and SciPy's least squares on the rows."""

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given

from gradhomog import OptionError, dual_cone_weights
from gradhomog.testing import jacobians
from tests.solvers.gramians import extended, lengths, rounding, rows


def violation(gramian, given_weights, weights):
    """Return the violation of ⟨g_i, d⟩ ≥ 0, with equality if v_i > u_i, relative to ‖g_i‖ · max_j |u_j| ‖g_j‖."""
    gramian, given_weights, weights = extended(gramian, given_weights, weights)
    norms, safe = lengths(gramian)
    size = float((np.abs(given_weights) * norms).max())
    if size == 0:
        return 0.0
    slopes, added = gramian @ weights / safe, (weights - given_weights) * norms
    missing = np.maximum(-slopes, np.abs(slopes) * added / max(added.max(), 1e-300)).max()
    return float(missing) / size - rounding((np.abs(weights) * norms).sum() / size)


@given(jacobians(tasks=(1, 12), params=(1, 16), spread=8))
def test_no_projection_conflicts_beyond_rounding(jacobian):
    gramian, tasks = jacobian @ jacobian.T, len(jacobian)
    each = torch.eye(tasks, dtype=torch.float64)
    found = dual_cone_weights(gramian, each).weights
    assert (found >= each).all()
    assert max(violation(gramian, u, v) for u, v in zip(each, found, strict=True)) < 1e-9
    mean = torch.full((tasks,), 1 / tasks, dtype=torch.float64)
    assert violation(gramian, mean, dual_cone_weights(gramian, mean).weights) < 1e-9


def test_random_gramians_of_every_kind_satisfy_the_optimality_conditions():
    for seed in range(120):
        jacobian = rows(seed)
        gramian, each = jacobian @ jacobian.T, torch.eye(len(jacobian), dtype=torch.float64)
        found = dual_cone_weights(gramian, each).weights
        assert max(violation(gramian, u, v) for u, v in zip(each, found, strict=True)) < 1e-9, seed


@pytest.mark.parametrize("seed", range(20))
def test_the_projection_is_that_of_nonnegative_least_squares_on_the_rows(seed):
    # d = Jᵀu + Jᵀx with x = argmin ‖Jᵀx + Jᵀu‖ over x ≥ 0; SciPy solves it on J, without the Gramian.
    jacobian = rows(seed, tasks=7, spread=1).numpy()
    given_weights = np.random.default_rng(seed).normal(size=7)  # some are negative, which is allowed
    added = scipy.optimize.nnls(jacobian.T, -jacobian.T @ given_weights)[0]
    found = dual_cone_weights(torch.from_numpy(jacobian @ jacobian.T), torch.from_numpy(given_weights)).weights.numpy()
    size = np.linalg.norm(jacobian, axis=1).max()
    np.testing.assert_allclose(found @ jacobian, (given_weights + added) @ jacobian, atol=1e-7 * size)


def test_a_zero_row_keeps_its_weight_and_does_not_change_others():
    jacobian = torch.tensor([[3.0, 0.0], [0.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    found = dual_cone_weights(jacobian @ jacobian.T, torch.full((3,), 1 / 3, dtype=torch.float64)).weights
    pair = jacobian[[0, 2]]
    expected = dual_cone_weights(pair @ pair.T, torch.full((2,), 1 / 3, dtype=torch.float64)).weights
    torch.testing.assert_close(found[[0, 2]], expected)
    assert float(found[1]) == 1 / 3


def test_a_zero_row_does_not_affect_the_accuracy_of_short_rows():
    # Vectors are scaled by their longest term, and the weight of a zero row must not count as one.
    jacobian = torch.tensor([[3.0, 0.0], [0.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    given_weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    plain = dual_cone_weights(jacobian @ jacobian.T, given_weights).weights
    torch.testing.assert_close(dual_cone_weights(1e-36 * jacobian @ jacobian.T, given_weights).weights, plain)


@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_differentiable_twice_wrt_rows_and_weights(tasks):
    generator = torch.Generator().manual_seed(tasks)
    jacobian = torch.randn(tasks, 9, generator=generator, dtype=torch.float64)
    jacobian = (jacobian - 0.9 * jacobian.mean(0)).requires_grad_()
    given_weights = torch.rand(tasks, tasks, generator=generator, dtype=torch.float64, requires_grad=True)

    def projected(rows, weights):
        return dual_cone_weights(rows @ rows.T, weights).weights @ rows

    assert torch.autograd.gradcheck(projected, (jacobian, given_weights))
    assert torch.autograd.gradgradcheck(projected, (jacobian, given_weights))


@pytest.mark.parametrize("opposite", [-1.0, -3.0])
def test_float32_rows_that_are_opposite_are_projected(opposite):
    # Rounding gives their Gramian eigenvalues of −1e-7: without a larger ridge the exchanges cycled.
    jacobian = torch.randn(8, 1000, generator=torch.Generator().manual_seed(0))
    jacobian[1], jacobian[2] = opposite * jacobian[0], 2 * jacobian[0]
    weights = dual_cone_weights(jacobian @ jacobian.T, torch.eye(8)).weights.mean(0)
    direction = weights @ jacobian.double()
    norms = jacobian.double().norm(dim=1)
    assert (jacobian.double() @ direction >= -1e-4 * norms * norms.max()).all()


def test_a_vector_of_another_length_raises():
    with pytest.raises(OptionError, match=r"`weights` must contain one number for each of the 4 rows .*; got \(3,\)"):
        dual_cone_weights(torch.eye(4), torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("tasks", "params", "seed"), [(100, 150, 0), (64, 8, 0), (64, 32, 0), (64, 63, 0), (72, 36, 1), (72, 36, 3)]
)
def test_programs_of_many_rows_meet_the_conditions_for_any_rank(tasks, params, seed, dtype):
    # For twice as many rows as dimensions, exchanges of single entries needed thousands, or did not end.
    rows = torch.randn(tasks, params, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    each = torch.eye(tasks, dtype=torch.float64)
    solution = dual_cone_weights(rows @ rows.T, each)
    assert solution.converged.all()
    exact, limit = rows.double(), 1e-9 if dtype == torch.float64 else 2e-4
    for row, weights in zip(each, solution.weights, strict=True):
        if dtype == torch.float64:
            assert violation(exact @ exact.T, row, weights) < limit
        conflict = float((exact @ (weights @ exact) / exact.norm(dim=1)).min())
        assert conflict > -limit * float(exact.norm(dim=1).max())


def test_a_program_at_the_edge_of_the_cone_ends():
    # 128 rows of 64 dimensions whose hull nearly contains zero: the result conflicted by 0.07, after 12 s.
    rows = torch.randn(128, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    each = torch.eye(128, dtype=torch.float64)
    solution = dual_cone_weights(rows @ rows.T, each)
    assert solution.converged.all()
    assert max(violation(rows @ rows.T, u, v) for u, v in zip(each, solution.weights, strict=True)) < 1e-9
