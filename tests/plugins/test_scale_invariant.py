"""The sum of logarithms against autograd."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from tests.plugins.from_losses import gradient_of, quadratics, rows_and_losses, weights


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_direction_is_the_gradient_of_the_sum_of_logarithms(seed):
    theta, losses_of = quadratics(seed=seed)
    rows, losses = rows_and_losses(losses_of, theta)
    found = gradhomog.pipeline("scale_invariant(scale='paper')").combine(rows, losses)
    expected = gradient_of(lambda values: values.log().sum(), losses_of, theta)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6))
def test_in_the_mean_scale_it_is_the_geometric_mean(losses):
    torch.testing.assert_close(weights("scale_invariant", losses), weights("geometric_mean", losses))


def test_weights_after_it_are_weights_in_the_sum_of_logarithms():
    theta, losses_of = quadratics(tasks=3)
    rows, losses = rows_and_losses(losses_of, theta)
    pipe = gradhomog.pipeline("scale_invariant(scale='paper') + static(weights=[0.6, 1.5, 0.9])")
    expected = gradient_of(lambda values: (torch.tensor([0.6, 1.5, 0.9]) * values.log()).sum(), losses_of, theta)
    torch.testing.assert_close(pipe.combine(rows, losses), expected, rtol=1e-6, atol=1e-9)
