"""The length of a step whose weights are in balance: one function for graphs, batches and compilers."""

import functools

import pytest
import torch

from gradhomog_plugins._bargained import step_weights
from tests.plugins.from_losses import assert_pure


@pytest.mark.parametrize(("scale", "max_norm"), [("mean", None), ("paper", None), ("paper", 0.5), ("paper", 50.0)])
def test_the_length_is_one_function_of_gramian_and_weights(scale, max_norm):
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = torch.tensor([0.5, 0.2, 0.9, 0.4], dtype=torch.float64)
    assert_pure(functools.partial(step_weights, scale=scale, max_norm=max_norm), rows @ rows.T, weights)


def test_a_step_that_is_too_long_gets_the_length_and_a_shorter_one_keeps_its_own():
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = torch.tensor([0.5, 0.2, 0.9], dtype=torch.float64)
    whole = float((weights @ rows).norm())
    for allowed in (whole / 3, whole * 3):
        step = step_weights(rows @ rows.T, weights, "paper", allowed) @ rows / 3
        assert float(step.norm()) == pytest.approx(min(whole, allowed))
