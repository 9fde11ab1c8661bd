"""IMTL-L against TorchJD's loss under torch's Adam, and its relation to uncertainty weighting."""

import pytest
import torch

import gradhomog
from tests.plugins.from_losses import weights


@pytest.mark.parametrize(("scale", "factor"), [("mean", 1), ("paper", 2)])
def test_it_is_uncertainty_weighting_of_regression_with_steps_twice_as_long_in_the_papers_scale(scale, factor):
    generator = torch.Generator().manual_seed(0)
    ours, other = (gradhomog.pipeline(f"{name}(lr=0.1, scale='{scale}')") for name in ("imtl_l", "uw"))
    for _ in range(20):
        losses = torch.rand(3, generator=generator, dtype=torch.float64) * 4
        torch.testing.assert_close(weights(ours, losses), factor * weights(other, losses), rtol=1e-6, atol=0)
