"""FairGrad against its equation on the rows, TorchJD where that is exact, Nash-MTL for α = 1; its scales."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gradhomog
from gradhomog.testing import jacobians
from tests.plugins.rows import normal


@given(jacobians(spread=2, zero=False), st.sampled_from([0.5, 2.0, 4.0]))
def test_gains_are_the_weights_to_the_power_of_minus_one_over_alpha(rows, alpha):
    result = gradhomog.pipeline(f"fairgrad(alpha={alpha}, scale='paper')").homogenize(rows)
    weights, gains = result.weights / len(rows), rows @ result.direction[""]
    assume(float(weights.min()) > 0)
    rounding = 1e-13 * rows.norm(dim=1) * (weights * rows.norm(dim=1)).sum()
    assert ((gains - weights ** (-1 / alpha)).abs() <= 1e-9 * weights ** (-1 / alpha) + rounding).all()


@pytest.mark.parametrize("scale", ["mean", "paper"])
def test_alpha_one_is_nash_mtl(scale):
    rows = normal(5, 12, seed=1)
    found = gradhomog.pipeline(f"fairgrad(alpha=1, scale='{scale}')").combine(rows)
    torch.testing.assert_close(found, gradhomog.pipeline(f"nash_mtl(scale='{scale}')").combine(rows))


@pytest.mark.parametrize("alpha", [0.1, 30, 1000.0])
def test_an_alpha_that_float64_cannot_serve_raises_instead_of_giving_zero(alpha):
    with pytest.raises(gradhomog.OptionError, match=r"`alpha` must be in \[0\.25, 20\]"):
        gradhomog.bargaining_weights(torch.eye(3), alpha)


@pytest.mark.parametrize("alpha", [0.25, 20])
def test_at_the_ends_of_its_range_rows_that_agree_get_a_step(alpha):
    generator = torch.Generator().manual_seed(0)
    for spread in (0, 2, 4):
        rows = torch.randn(8, 100, generator=generator, dtype=torch.float64)
        rows = rows * 10 ** (spread * torch.rand(8, 1, generator=generator, dtype=torch.float64))
        assert bool((rows @ gradhomog.pipeline(f"fairgrad(alpha={alpha})").combine(rows) > 0).all())
