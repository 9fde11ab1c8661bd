"""The geometric mean of the losses against products of the losses."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.from_losses import weights


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6))
def test_weights_are_inverse_to_the_losses_with_mean_one_or_in_the_paper_scale_as_long_as_the_geometric_mean(losses):
    inverse = torch.tensor([1 / loss for loss in losses], dtype=torch.float64)
    torch.testing.assert_close(weights("geometric_mean", losses), inverse / inverse.mean(), rtol=1e-9, atol=0)
    expected = math.exp(math.fsum(map(math.log, losses)) / len(losses)) * inverse
    torch.testing.assert_close(weights("geometric_mean(scale='paper')", losses), expected, rtol=1e-9, atol=0)


def test_losses_whose_product_overflows_have_finite_weights():
    losses = [1e200, 1e200, 1e180]
    assert math.prod(losses) == math.inf
    found = weights("geometric_mean(scale='paper')", losses)
    assert found.tolist() == pytest.approx([10 ** (-20 / 3), 10 ** (-20 / 3), 10 ** (40 / 3)], rel=1e-9)
