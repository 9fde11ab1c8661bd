"""CAGrad's program: its optimality conditions, and its limit, the projection."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from gradhomog import OptionError, conflict_averse_weights, dual_cone_weights
from gradhomog.testing import jacobians
from tests.solvers.gramians import extended, lengths, rounding, rows


def violation(gramian, weights, c):
    """Return the violation of optimality on the ball, or as projection onto the dual cone, relative to max_i ‖g_i‖/N.

    On the ball: ⟨g_i, d⟩ ≥ τ relative to ‖g_i‖, with equality if v_i > 1/N, and ‖d − g_0‖ = c ‖g_0‖. If rows cancel, a
    length from the Gramian is accurate only to the square root of rounding.
    """
    gramian, weights = extended(gramian, weights)
    tasks = len(weights)
    mean = np.full(tasks, 1 / tasks, dtype=np.longdouble)
    norms, safe = lengths(gramian)
    size = float((mean * norms).max())
    if size == 0:
        return 0.0
    added, slopes = weights - mean, gramian @ weights
    moved, radius = np.sqrt(max(added @ gramian @ added, 0)), c * np.sqrt(max(mean @ gramian @ mean, 0))
    shares = added * norms / max((added * norms).max(), 1e-300)

    def missing(level):
        return (np.where(norms > 0, np.maximum(level - slopes, np.abs(slopes - level) * shares), 0) / safe).max()

    on_ball = max(min(missing(level) for level in slopes[norms > 0]), abs(moved - radius))
    in_cone = max(missing(np.longdouble(0)), moved - radius)
    terms = (np.abs(weights) * norms).sum() / size
    return min(float(on_ball), float(in_cone)) / size - rounding(terms**2)


@given(jacobians(tasks=(1, 10), params=(1, 12), spread=8), st.sampled_from([0.0, 0.1, 0.4, 0.9, 2.0]))
def test_the_direction_satisfies_the_optimality_conditions(jacobian, c):
    gramian = jacobian @ jacobian.T
    assume(float(jacobian.mean(0).norm()) > 1e-5 * float(jacobian.norm(dim=1).max()))  # else ‖g_0‖ is rounding
    weights = conflict_averse_weights(gramian, c).weights
    assert float(weights.min()) >= 1 / len(jacobian) - 1e-15
    assert violation(gramian, weights, c) < 1e-9


def test_random_gramians_of_every_kind_satisfy_the_optimality_conditions():
    worst = max((violation(g, conflict_averse_weights(g, 0.4).weights, 0.4), seed) for seed in range(200)
                for g in [rows(seed) @ rows(seed).T])  # fmt: skip
    assert worst[0] < 1e-9, worst


@pytest.mark.parametrize("params", [8, 32, 63])
@pytest.mark.parametrize("c", [0.4, 0.9])
def test_many_rows_satisfy_the_optimality_conditions_for_any_rank(params, c):
    for seed in range(3):
        jacobian = torch.randn(64, params, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        solution = conflict_averse_weights(jacobian @ jacobian.T, c)
        assert solution.converged
        assert violation(jacobian @ jacobian.T, solution.weights, c) < 1e-9


def test_nearly_equal_rows_follow_the_shorter_one():
    # ‖g_1 − g_2‖² is dominated by rounding and may be negative, whereas G_11 − G_12 and G_22 − G_12 are exact.
    jacobian = torch.tensor(
        [[1.4586614284378885, -27.54041059886956], [1.458661405775631, -27.540410444530057]], dtype=torch.float64
    )
    gramian = jacobian @ jacobian.T
    assert violation(gramian, conflict_averse_weights(gramian, 0.4).weights, 0.4) < 1e-9


def test_bisection_finds_the_level_if_exchanges_do_not_end():
    # The hull contains zero, but the ball is far from it: d = 0, with inner products zero, is not in the ball.
    jacobian = torch.tensor([[3500, -450], [-3.6, 5.5], [-110, -200], [0.0016, 0.0024]], dtype=torch.float64)
    gramian = jacobian @ jacobian.T
    weights = conflict_averse_weights(gramian, 0.4).weights
    assert violation(gramian, weights, 0.4) < 1e-9
    mean, direction = jacobian.mean(0), weights @ jacobian
    assert float((direction - mean).norm() / mean.norm()) == pytest.approx(0.4)


@pytest.mark.parametrize("extra", [[[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.5], [0.0, 0.0, -0.5]]], ids=["zero", "opposite"])
def test_if_the_hull_contains_zero_the_result_is_the_projection_if_it_is_in_the_ball(extra):
    jacobian = torch.tensor([[3.0, 1.0, 0.0], [-0.5, 2.0, 0.3], *extra], dtype=torch.float64)
    gramian = jacobian @ jacobian.T
    mean = torch.full((len(jacobian),), 1 / len(jacobian), dtype=torch.float64)
    expected = dual_cone_weights(gramian, mean).weights @ jacobian
    torch.testing.assert_close(conflict_averse_weights(gramian, 0.4).weights @ jacobian, expected)


def test_radius_zero_and_mean_zero_give_the_mean():
    jacobian = rows(5, tasks=6, spread=1)
    weights = conflict_averse_weights(jacobian @ jacobian.T, 0.0).weights
    torch.testing.assert_close(weights, torch.full((6,), 1 / 6, dtype=torch.float64))
    opposite = torch.tensor([[1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64)
    assert (conflict_averse_weights(opposite @ opposite.T, 0.4).weights @ opposite).abs().max() < 1e-12
    assert conflict_averse_weights(torch.zeros(3, 3), 0.4).weights.tolist() == pytest.approx([1 / 3] * 3)


def test_differentiable_if_the_result_is_the_projection():
    jacobian = torch.tensor([[3.0, 1.0, 0.0], [-0.5, 2.0, 0.3], [0.0, 0.0, 0.0]], dtype=torch.float64)

    def direction(others):
        rows = torch.cat([others, jacobian[2:]])
        return conflict_averse_weights(rows @ rows.T, 0.4).weights @ rows

    assert torch.autograd.gradcheck(direction, jacobian[:2].clone().requires_grad_())


def test_pairs_of_every_kind_are_solved_in_one_batch_with_finite_derivatives():
    pairs = {
        "much shorter": [[0.1, 0.2], [3.0, 1.0]],
        "similar norms": [[1.0, 0.0], [0.2, 1.1]],
        "identical": [[1.0, 2.0], [1.0, 2.0]],
        "opposite": [[1.0, 2.0], [-1.0, -2.0]],
        "opposite, different norms": [[1.0, 2.0], [-2.0, -4.0]],
        "one zero": [[0.0, 0.0], [1.0, 2.0]],
        "both zero": [[0.0, 0.0], [0.0, 0.0]],
    }
    jacobians = torch.tensor(list(pairs.values()), dtype=torch.float64, requires_grad=True)
    gramians = jacobians @ jacobians.mT
    weights = conflict_averse_weights(gramians, 0.4).weights
    for name, gramian, found in zip(pairs, gramians, weights, strict=True):
        assert violation(gramian, found, 0.4) < 1e-9, name
    assert float(weights[2].detach().sum()) == pytest.approx(1.4)  # for identical rows only the sum is determined
    weights.square().sum().backward()
    assert bool(jacobians.grad.isfinite().all())


@pytest.mark.parametrize("c", [-0.4, float("nan"), float("inf")])
def test_an_invalid_radius_raises(c):
    with pytest.raises(OptionError, match="`c` must be finite and non-negative"):
        conflict_averse_weights(torch.eye(2), c)


@pytest.mark.parametrize("exponent", [-60, -42, 40])
def test_a_power_of_two_changes_no_bit_of_the_projection(exponent):
    # Rows that were projected otherwise at 2^-42: the pivoting counted the whole target as rounding.
    rows = torch.tensor(
        [
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
            [3.922, -0.298, 4.518, 0.397, -1.738, -0.596],
            [0.025, 2.239, 0.0, 0.0, -1.692, 0.0],
            [-1.194, 0.0, 0.398, 0.0, 0.0, 0.398],
            [0.015, 0.0, -0.044, 0.0, -0.053, 0.058],
        ],
        dtype=torch.float64,
    )
    gramian = rows @ rows.T
    scaled = conflict_averse_weights(gramian * 4.0**exponent, c=0.4).weights
    assert torch.equal(scaled, conflict_averse_weights(gramian, c=0.4).weights)
