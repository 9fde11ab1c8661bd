"""Weights of Nash-MTL and FairGrad: derivatives, vmap and compilation; length of the step in both scales."""

import pytest
import torch

import gradhomog
from gradhomog_plugins._bargaining import projection_weights
from tests.plugins.from_losses import assert_pure

WEIGHTS = torch.tensor([0.5, 0.2, 0.9, 0.4], dtype=torch.float64)


def test_the_step_and_its_length_are_one_function_of_gramian_and_weights():
    rows = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def flat(gramian, weights):
        step, (ratio, length) = projection_weights(gramian, weights)
        return torch.cat([step, ratio[None], length[None]])

    assert_pure(flat, rows @ rows.T, WEIGHTS)


def test_the_step_is_the_projection_of_the_mean_and_its_length_that_of_the_papers():
    rows = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step, (ratio, length) = projection_weights(rows @ rows.T, WEIGHTS)
    paper = WEIGHTS @ rows
    unit = paper / paper.norm()
    torch.testing.assert_close(step @ rows / 4, (rows.mean(0) @ unit) * unit)
    torch.testing.assert_close(length, paper.norm())
    torch.testing.assert_close(step / ratio, WEIGHTS)


@pytest.mark.parametrize("method", ["nash_mtl", "fairgrad(alpha=0.5)"])
def test_float32_rows_get_the_direction_of_the_same_rows_in_float64(method):
    rows = torch.randn(6, 300, generator=torch.Generator().manual_seed(2))
    expected = gradhomog.pipeline(method).combine(rows.double())
    torch.testing.assert_close(gradhomog.pipeline(method).combine(rows), expected.float(), rtol=1e-4, atol=1e-6)
