"""Nash-MTL against its equation on the rows, and TorchJD where that is exact; its scales."""

import pytest
import torch
import torchjd.aggregation
from hypothesis import assume, given

import gradhomog
from gradhomog import OptionError
from gradhomog.testing import jacobians

# cvxpy warns that its problems do not get faster, and sometimes that their solution may be inaccurate.
pytestmark = [
    pytest.mark.filterwarnings("ignore:You are solving a parameterized problem that is not DPP:UserWarning"),
    pytest.mark.filterwarnings("ignore:Solution may be inaccurate:UserWarning"),
]


def comparable(tasks, seed=0):
    return torch.randn(tasks, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(jacobians(spread=3, zero=False))
def test_weights_and_gains_are_in_balance(rows):
    result = gradhomog.pipeline("nash_mtl(scale='paper')").homogenize(rows)
    alpha, gains = result.weights / len(rows), rows @ result.direction[""]
    assume(float(alpha.min()) > 0)
    terms = alpha * rows.norm(dim=1)  # where rows cancel, the direction is rounded like the longest of them
    assert ((alpha * gains - 1).abs() < 1e-9 + 1e-12 * terms.sum() * terms).all()


def test_comparable_rows_equal_torchjd():
    rows = comparable(4)
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
    direction = gradhomog.pipeline("nash_mtl(scale='paper')").combine(size * comparable(5))
    assert float(direction.norm()) == pytest.approx(5**0.5)


def test_scale_mean_projects_the_mean_on_the_direction_of_the_paper():
    rows = comparable(4, seed=1) * torch.tensor([[1.0], [5.0], [0.1], [2.0]])
    paper = gradhomog.pipeline("nash_mtl(scale='paper')").combine(rows)
    unit = paper / paper.norm()
    torch.testing.assert_close(gradhomog.pipeline("nash_mtl").combine(rows), (rows.mean(0) @ unit) * unit)


def test_the_papers_step_is_clipped_to_max_norm_where_it_is_longer():
    rows = comparable(4)
    paper = gradhomog.pipeline("nash_mtl(scale='paper')").combine(rows)
    clipped = gradhomog.pipeline("nash_mtl(scale='paper', max_norm=1)").combine(rows)
    torch.testing.assert_close(clipped, paper / 2)
    unclipped = gradhomog.pipeline("nash_mtl(scale='paper', max_norm=3)").combine(rows)
    torch.testing.assert_close(unclipped, paper)


@pytest.mark.parametrize("scale", ["mean", "paper"])
def test_opposite_rows_have_nothing_to_agree_on(scale):
    rows = torch.tensor([[1.0, 2.0], [-3.0, -6.0], [0.0, 1.0]])
    assert not gradhomog.pipeline(f"nash_mtl(scale='{scale}')").combine(rows).any()


def test_a_zero_row_is_ignored():
    rows = comparable(3)
    beside = torch.cat([rows, torch.zeros(1, 12, dtype=torch.float64)])
    pipe = gradhomog.pipeline("nash_mtl(scale='paper')")
    torch.testing.assert_close(pipe.combine(beside), pipe.combine(rows))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nash_mtl(max_norm=0, scale='paper')", "`max_norm` must be"),
    ],
)
def test_options_out_of_range_raise(text, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(text)
