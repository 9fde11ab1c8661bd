"""The minimum-norm program: optimality conditions, zero rows, and derivatives."""

import numpy as np
import pytest
import torch
from hypothesis import example, given

from gradhomog import minimum_norm_weights
from gradhomog.testing import jacobians
from tests.solvers.gramians import extended, lengths, rounding, rows

# Opposite rows, duplicates, and a short row.
CANCELLING = torch.tensor(
    [[1, 5, 2.75], *[[0, 0, 1.0]] * 8, [0, 1, -1], [1, 5, 2.75], [-1, -5, -2.75], [0, 0, 10**-3.2]], dtype=torch.float64
)


def violation(gramian, weights):
    """Return the violation of (Gα)_i ≥ λ, with equality if α_i > 0, relative to ‖g_i‖ · min_j ‖g_j‖, beyond rounding.

    λ is chosen for the smallest violation: αᵀGα would contain the rounding of the longest rows.
    """
    gramian, weights = extended(gramian, weights)
    norms, _ = lengths(gramian)
    if norms.min() == 0:
        return float(weights @ gramian @ weights) / float(norms.max() ** 2 + 1e-300)
    slopes, sizes = gramian @ weights, norms * norms.min()

    def missing(level):
        return (np.maximum(level - slopes, np.abs(slopes - level) * weights) / sizes).max()

    found = min(missing(level) for level in (*slopes, weights @ slopes))
    return float(found) - rounding((weights * norms).sum() / norms.min())


@given(jacobians(tasks=(1, 16), params=(1, 24), spread=8))
@example(CANCELLING)
def test_weights_are_on_the_simplex_and_satisfy_the_optimality_conditions(jacobian):
    gramian = jacobian @ jacobian.T
    weights = minimum_norm_weights(gramian).weights
    assert float(weights.min()) >= 0
    assert abs(float(weights.sum()) - 1) < 1e-12
    assert violation(gramian, weights) < 1e-9


def test_random_gramians_of_every_kind_satisfy_the_optimality_conditions():
    worst = max((violation(g, minimum_norm_weights(g).weights), seed) for seed in range(250)
                for g in [rows(seed) @ rows(seed).T])  # fmt: skip
    assert worst[0] < 1e-9, worst


@pytest.mark.parametrize("ratio", [1e4, 1e6, 1e8])
def test_long_opposite_rows_and_a_short_row_give_zero(ratio):
    # Regression: any ridge on the scaled Gramian favours the short row, which was the result.
    jacobian = torch.tensor([[3.0, 4.0, 0.0], [-3.0, -4.0, 0.0], [0.0, 0.0, 1 / ratio]], dtype=torch.float64)
    direction = minimum_norm_weights(jacobian @ jacobian.T).weights @ jacobian
    assert float(direction.norm()) < 1e-6 / ratio


def test_zero_rows_share_the_weight():
    jacobian = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert minimum_norm_weights(jacobian @ jacobian.T).weights.tolist() == pytest.approx([0.0, 0.5, 0.0, 0.5])
    assert minimum_norm_weights(torch.zeros(3, 3)).weights.tolist() == pytest.approx([1 / 3] * 3)


def test_differentiable_if_the_active_set_method_was_used():
    # The hull of two long rows nearly contains zero, and another row is short: solved and differentiated without ridge.
    jacobian = torch.tensor([[1e4, 1.0, 0.0], [-1e4, 1.0, 0.0], [0.0, 1.0, 2.0]], dtype=torch.float64)
    jacobian = (jacobian * torch.tensor([[1.0], [1.0], [1e-2]])).requires_grad_()

    def shortest(rows):
        return minimum_norm_weights(rows @ rows.T).weights @ rows

    assert torch.autograd.gradcheck(shortest, jacobian, eps=1e-7, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("tasks", "params"), [(64, 8), (64, 32), (128, 64), (128, 127)])
def test_many_rows_satisfy_the_optimality_conditions_for_any_rank(tasks, params):
    for seed in range(3):
        jacobian = torch.randn(tasks, params, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        gramian = jacobian @ jacobian.T
        solution = minimum_norm_weights(gramian)
        assert solution.converged
        assert violation(gramian, solution.weights) < 1e-9
