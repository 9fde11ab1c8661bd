"""The sum of logarithms against autograd, and what a unit of one loss changes."""

from __future__ import annotations

import pytest
import torch

import gradhomog
from gradhomog import OptionError
from gradhomog_plugins._losses import inverse
from tests.plugins.from_losses import assert_pure, gradient_of, quadratics, rows_and_losses, weights


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_direction_is_the_gradient_of_the_sum_of_logarithms(seed):
    theta, losses_of = quadratics(seed=seed)
    rows, losses = rows_and_losses(losses_of, theta)
    found = gradhomog.pipeline("scale_invariant(scale='paper')").combine(rows, losses)
    expected = gradient_of(lambda values: values.log().sum(), losses_of, theta)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_the_unit_of_one_loss_changes_nothing_and_with_the_mean_scale_only_the_length():
    theta, losses_of = quadratics()
    rows, losses = rows_and_losses(losses_of, theta)
    units = torch.tensor([1.0, 1000.0, 0.01, 1.0], dtype=torch.float64)
    for text in ("scale_invariant(scale='paper')", "scale_invariant"):
        pipe = gradhomog.pipeline(text)
        plain, other = pipe.combine(rows, losses), pipe.combine(units[:, None] * rows, units * losses)
        if text == "scale_invariant":
            plain, other = plain / plain.norm(), other / other.norm()
        torch.testing.assert_close(other, plain, rtol=1e-10, atol=1e-12)


def test_weights_before_it_are_weights_in_the_sum_of_logarithms():
    theta, losses_of = quadratics(tasks=3)
    rows, losses = rows_and_losses(losses_of, theta)
    pipe = gradhomog.pipeline("static(weights=[0.6, 1.5, 0.9]) + scale_invariant(scale='paper')")
    expected = gradient_of(lambda values: (torch.tensor([0.6, 1.5, 0.9]) * values.log()).sum(), losses_of, theta)
    torch.testing.assert_close(pipe.combine(rows, losses), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("loss", [0.0, -2.0])
def test_a_loss_that_is_not_positive_is_refused_by_name(loss):
    with pytest.raises(OptionError, match=f"scale_invariant: losses must be positive.*; task 1 has {loss!r}"):
        weights("scale_invariant", [1.0, loss])


def test_the_weights_are_a_pure_function_of_the_losses():
    assert_pure(inverse, torch.tensor([0.5, 2.0, 1.2, 3.0], dtype=torch.float64))


@pytest.mark.parametrize("losses", [[1e-300, 2e-300], [1e300, 2e300], [5e-324, 1e-323], [1e308, 1.7e308]])
def test_with_the_mean_scale_a_common_factor_of_any_size_changes_no_weight(losses):
    expected = weights("scale_invariant", [1.0, losses[1] / losses[0]])
    torch.testing.assert_close(weights("scale_invariant", losses), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", [1e-300, 5e-324])
def test_a_loss_whose_inverse_leaves_the_rows_dtype_is_refused_by_name(loss):
    with pytest.raises(OptionError, match=rf"scale_invariant: weights N/L .*; task 1 has {loss!r}.*use scale='mean'"):
        weights("scale_invariant(scale='paper')", [1.0, loss])
