"""The geometric mean of the losses against TorchJD, autograd and products of the losses."""

from __future__ import annotations

import math

import pytest
import torch
import torchjd.scalarization
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog import OptionError
from gradhomog_plugins._losses import inverse
from gradhomog_plugins.geometric_mean import paper_weights
from tests.plugins.from_losses import assert_pure, gradient_of, quadratics, rows_and_losses, weights

positive = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6)


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_direction_is_the_gradient_of_torchjds_geometric_mean(seed):
    theta, losses_of = quadratics(seed=seed)
    rows, losses = rows_and_losses(losses_of, theta)
    found = gradhomog.pipeline("geometric_mean(scale='paper')").combine(rows, losses)
    expected = gradient_of(torchjd.scalarization.GeometricMean(), losses_of, theta)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@given(positive)
def test_weights_are_inverse_to_the_losses_with_the_mean_one_or_as_long_as_the_geometric_mean(losses):
    inverse = torch.tensor([1 / loss for loss in losses], dtype=torch.float64)
    torch.testing.assert_close(weights("geometric_mean", losses), inverse / inverse.mean(), rtol=1e-9, atol=0)
    expected = math.exp(math.fsum(map(math.log, losses)) / len(losses)) * inverse
    torch.testing.assert_close(weights("geometric_mean(scale='paper')", losses), expected, rtol=1e-9, atol=0)


@given(positive)
def test_with_the_mean_scale_it_is_scale_invariant(losses):
    torch.testing.assert_close(weights("geometric_mean", losses), weights("scale_invariant", losses))


def test_losses_whose_product_overflows_have_finite_weights():
    found = weights("geometric_mean(scale='paper')", [1e200, 1e200, 1e180])
    assert math.prod([1e200, 1e200, 1e180]) == math.inf  # where LibMTL gets its weights from
    assert found.tolist() == pytest.approx([10 ** (-20 / 3), 10 ** (-20 / 3), 10 ** (40 / 3)], rel=1e-9)


def test_a_loss_of_zero_is_refused_where_torchjd_gives_nan():
    losses = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.grad(torchjd.scalarization.GeometricMean()(losses), losses)[0].isnan().any()
    with pytest.raises(OptionError, match=r"geometric_mean: losses must be positive.*; task 0 of domain 'x' has 0\.0"):
        weights("geometric_mean", [0.0, 1.0], domains=["x", "y"])
    with pytest.raises(OptionError, match=r"task 1 has -1\.0"):
        weights("geometric_mean", [2.0, -1.0])


@pytest.mark.parametrize("function", [inverse, paper_weights])
def test_the_weights_are_a_pure_function_of_the_losses(function):
    assert_pure(function, torch.tensor([0.5, 2.0, 1.2, 3.0], dtype=torch.float64))


@pytest.mark.parametrize("losses", [[1e-300, 2e-300], [1e300, 2e300], [5e-324, 1e-323], [1e308, 1.7e308]])
@pytest.mark.parametrize("scale", ["mean", "paper"])
def test_a_common_factor_of_any_size_changes_no_weight(losses, scale):
    # Not the losses' ratio as written: of subnormal numbers it is another.
    expected = weights(f"geometric_mean(scale='{scale}')", [1.0, losses[1] / losses[0]])
    torch.testing.assert_close(weights(f"geometric_mean(scale='{scale}')", losses), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("losses", "task"), [([1e-300, 1.0], 0), ([1e300, 1.0], 1), ([5e-324, 1e308], 0)])
def test_losses_so_far_apart_that_a_weight_leaves_the_rows_dtype_are_refused_by_name(losses, task):
    with pytest.raises(OptionError, match=rf"geometric_mean: weights .*; task {task} has .*use scale='mean'"):
        weights("geometric_mean(scale='paper')", losses)
    assert weights("geometric_mean", losses).sum() == 2
