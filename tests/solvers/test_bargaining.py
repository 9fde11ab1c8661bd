"""Bargaining weights: their equations, and rows without a common direction."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradhomog import bargaining_weights, minimum_norm_weights
from gradhomog.testing import jacobians
from tests.solvers.gramians import extended, rows


def residual(gramian, weights, alpha):
    """Return max |w_i^(1/α) (Gw)_i − 1| over rows that are not zero, beyond the rounding of these sums."""
    present = gramian.diagonal() > 0
    gramian, weights = extended(gramian[present][:, present], weights[present])
    terms = weights[:, None] ** (1 / alpha) * gramian * weights
    return float((np.abs(terms.sum(1) - 1) - 4e-15 * np.abs(terms).sum(1)).max(initial=0))


def common_cosine(jacobian):
    """Return the maximum over directions of the smallest cosine with a nonzero row; 0 if the hull contains zero."""
    unit = jacobian[jacobian.any(dim=1)]
    unit = unit / unit.norm(dim=1, keepdim=True)
    return float((minimum_norm_weights(unit @ unit.T).weights @ unit).norm()) if len(unit) else 1.0


def check(jacobian, alpha):
    gramian = jacobian @ jacobian.T
    weights = bargaining_weights(gramian, alpha).weights
    present = gramian.diagonal() > 0
    assert (weights[~present] == 0).all()
    if bool((weights > 0).any()):
        assert (weights[present] > 0).all()
        assert residual(gramian, weights, alpha) < 1e-10
    else:
        assert common_cosine(jacobian) < 1e-3 or not bool(present.any())


@given(jacobians(tasks=(1, 12), params=(1, 16), spread=8), st.sampled_from([1.0, 2.0]))
def test_every_equation_holds_unless_no_direction_improves_all(jacobian, alpha):
    check(jacobian, alpha)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 5.0, 20.0])
def test_equations_hold_for_random_gramians_of_every_kind(alpha):
    for seed in range(80):
        check(rows(seed, spread=None if alpha >= 1 else 2), alpha)


@pytest.mark.parametrize("alpha", [1.0, 2.0])
@pytest.mark.parametrize(
    "jacobian",
    [
        [[1.0, 2.0], [-2.0, -4.0]],
        [[1.0, 2.0], [-2.0, -4.0], [0.0, 1.0]],
        [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]],
        [[1.0], [-1.0], [0.5], [2.0]],
        [[0.0, 0.0], [0.0, 0.0]],
        [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
    ],
)
def test_weights_are_zero_if_no_direction_improves_all_tasks(jacobian, alpha):
    jacobian = torch.tensor(jacobian, dtype=torch.float64)
    assert not bargaining_weights(jacobian @ jacobian.T, alpha).weights.any()


@pytest.mark.parametrize("alpha", [1.0, 2.0])
@pytest.mark.parametrize("jacobian", [torch.tensor([[1.0, 2.0], [-2.0, -4.0], [0.0, 1.0]]), rows(68)])
def test_derivatives_are_finite_if_there_is_no_solution(jacobian, alpha):
    jacobian = jacobian.double().requires_grad_()
    (bargaining_weights(jacobian @ jacobian.T, alpha).weights @ jacobian).sum().backward()
    assert bool(jacobian.grad.isfinite().all())
