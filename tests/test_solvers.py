"""The minimum-norm program against its optimality conditions, SciPy, and its closed form."""

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gradhomog import minimum_norm_weights
from gradhomog.testing import jacobians


def kkt_residual(gramian, weights):
    """Violation of (Gα)_i ≥ αᵀGα, with equality where α_i > 0, relative to ‖g_i‖ · min_j ‖g_j‖."""
    norms = gramian.diagonal().sqrt()
    if (norms == 0).any():
        return float(weights @ gramian @ weights) / float(norms.max() ** 2 + 1e-300)
    slack = gramian @ weights - weights @ gramian @ weights
    violation = torch.maximum((-slack).clamp_min(0), slack.abs() * weights)
    return float((violation / (norms * norms.min())).max())


# Opposite rows, duplicates and one that is short.
CANCELLING = torch.tensor(
    [[1, 5, 2.75], *[[0, 0, 1.0]] * 8, [0, 1, -1], [1, 5, 2.75], [-1, -5, -2.75], [0, 0, 10**-3.2]], dtype=torch.float64
)


@given(jacobians(tasks=(1, 16), params=(1, 24)))
@example(CANCELLING)
def test_weights_are_on_the_simplex_and_satisfy_the_optimality_conditions(rows):
    gramian = rows @ rows.T
    weights = minimum_norm_weights(gramian)
    assert float(weights.min()) >= 0
    assert abs(float(weights.sum()) - 1) < 1e-12
    assert kkt_residual(gramian, weights) < 1e-9


@given(jacobians(tasks=(2, 2)))
def test_two_rows_have_the_closed_form(rows):
    first, second = rows
    apart = float((first - second) @ (first - second))
    if apart == 0:
        return
    expected = min(max(float((second - first) @ second) / apart, 0.0), 1.0)
    assert abs(float(minimum_norm_weights(rows @ rows.T)[0]) - expected) < 1e-7


@pytest.mark.parametrize("seed", range(8))
def test_norm_is_not_above_what_scipy_finds(seed):
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(6, 8)) + generator.normal(size=8)
    gramian = rows @ rows.T
    found = scipy.optimize.minimize(
        lambda w: w @ gramian @ w, np.full(6, 1 / 6), jac=lambda w: 2 * gramian @ w, method="SLSQP",
        bounds=[(0, 1)] * 6, constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"ftol": 1e-15},
    )  # fmt: skip
    ours = minimum_norm_weights(torch.from_numpy(gramian)).numpy()
    assert ours @ gramian @ ours <= found.fun + 1e-9
    np.testing.assert_allclose(ours, found.x, atol=1e-4)


@given(st.integers(0, 10_000), st.integers(-30, 30))
def test_weights_do_not_change_with_a_common_factor(seed, exponent):
    rows = torch.randn(5, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gramian = rows @ rows.T
    torch.testing.assert_close(
        minimum_norm_weights(gramian * 2.0**exponent), minimum_norm_weights(gramian), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("tasks", [2, 3, 5])
def test_differentiable_where_the_support_is_constant(tasks):
    rows = torch.randn(tasks, 12, generator=torch.Generator().manual_seed(tasks), dtype=torch.float64)

    def shortest(jacobian):
        return minimum_norm_weights(jacobian @ jacobian.T) @ jacobian

    rows.requires_grad_()
    assert torch.autograd.gradcheck(shortest, rows)
    assert torch.autograd.gradgradcheck(shortest, rows)
