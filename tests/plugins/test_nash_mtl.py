"""Nash-MTL against its equation on the rows, and TorchJD where that is exact; its scales."""

import pytest
import torch
import torchjd.aggregation
from hypothesis import assume, given

import gradhomog
from gradhomog.testing import jacobians
from tests.plugins.rows import normal

# cvxpy warns that its problems do not get faster, and sometimes that their solution may be inaccurate.
pytestmark = [
    pytest.mark.filterwarnings("ignore:You are solving a parameterized problem that is not DPP:UserWarning"),
    pytest.mark.filterwarnings("ignore:Solution may be inaccurate:UserWarning"),
]


@given(jacobians(spread=3, zero=False))
def test_weights_and_gains_are_in_balance(rows):
    result = gradhomog.pipeline("nash_mtl(scale='paper')").homogenize(rows)
    alpha, gains = result.weights / len(rows), rows @ result.direction[""]
    assume(float(alpha.min()) > 0)
    terms = alpha * rows.norm(dim=1)  # where rows cancel, the direction is rounded like the longest of them
    assert ((alpha * gains - 1).abs() < 1e-9 + 1e-12 * terms.sum() * terms).all()


def test_comparable_rows_equal_torchjd():
    rows = normal(4, 12)
    expected = torchjd.aggregation.NashMTL(n_tasks=4, max_norm=0.0)(rows)
    torch.testing.assert_close(
        gradhomog.pipeline("nash_mtl(scale='paper')").combine(rows), expected, rtol=1e-4, atol=1e-5
    )


def test_weights_of_many_tasks_are_in_balance_where_norms_spread_from_a_tenth_to_ten():
    # Seen in TorchJD 0.18: its solver fails without a message, and max |α_i (Gα)_i − 1| is between 8 and 450.
    generator = torch.Generator().manual_seed(0)
    norms = 10 ** (2 * torch.rand(16, 1, generator=generator, dtype=torch.float64) - 1)
    rows = norms * torch.randn(16, 50, generator=generator, dtype=torch.float64)
    result = gradhomog.pipeline("nash_mtl(scale='paper')").homogenize(rows)
    assert float((result.weights / 16 * (rows @ result.direction[""]) - 1).abs().max()) < 1e-10


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_the_papers_step_has_one_length_for_gradients_of_any_size(size):
    direction = gradhomog.pipeline("nash_mtl(scale='paper')").combine(size * normal(5, 12))
    assert float(direction.norm()) == pytest.approx(5**0.5)
