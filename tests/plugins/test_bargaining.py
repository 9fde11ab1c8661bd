"""Nash-MTL and FairGrad against their equation on the rows, and the length of their steps in both scales."""

import pytest
import torch
import torchjd.aggregation

import gradhomog
from tests.plugins.rows import normal

METHODS = ["nash_mtl", "fairgrad", "fairgrad(alpha=0.5)"]


def combine(method, rows, **options):
    name, _, own = method.partition("(")
    own = {"alpha": float(own.removeprefix("alpha=").removesuffix(")"))} if own else {}
    return gradhomog.pipeline([(name, {**own, **options})]).combine(rows)


# cvxpy warns that the problems of TorchJD do not get faster, and sometimes that their solution may be inaccurate.
@pytest.mark.filterwarnings("ignore:You are solving a parameterized problem that is not DPP:UserWarning")
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate:UserWarning")
def test_one_step_of_nash_mtl_is_torchjds():
    expected = torchjd.aggregation.NashMTL(n_tasks=4, max_norm=0.0)(normal(4, 12))
    torch.testing.assert_close(combine("nash_mtl", normal(4, 12), scale="paper"), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", ["mean", "paper"])
def test_fairgrad_with_alpha_one_is_nash_mtl(scale):
    rows = normal(5, 12, seed=1)
    torch.testing.assert_close(combine("fairgrad(alpha=1)", rows, scale=scale), combine("nash_mtl", rows, scale=scale))


@pytest.mark.parametrize("alpha", [0.1, 30, 1000.0])
def test_an_alpha_that_float64_cannot_serve_raises_instead_of_giving_zero(alpha):
    with pytest.raises(gradhomog.OptionError, match=r"`alpha` must be in \[0\.25, 20\]"):
        gradhomog.bargaining_weights(torch.eye(3), alpha)


@pytest.mark.parametrize("alpha", [0.25, 20])
def test_at_the_ends_of_the_range_of_alpha_rows_that_agree_get_a_step(alpha):
    for spread in (0, 2, 4):
        factors = 10 ** (spread * torch.rand(8, 1, generator=torch.Generator().manual_seed(spread)).double())
        rows = normal(8, 100, seed=spread) * factors
        assert bool((rows @ gradhomog.pipeline(f"fairgrad(alpha={alpha})").combine(rows) > 0).all())


@pytest.mark.parametrize("method", METHODS)
def test_scale_mean_projects_the_mean_on_the_direction_of_the_paper(method):
    rows = normal(4, 12, seed=1) * torch.tensor([[1.0], [5.0], [0.1], [2.0]])
    paper = combine(method, rows, scale="paper")
    unit = paper / paper.norm()
    torch.testing.assert_close(combine(method, rows), (rows.mean(0) @ unit) * unit)


@pytest.mark.parametrize("method", METHODS)
def test_the_papers_step_is_clipped_to_max_norm_where_it_is_longer(method):
    rows = normal(4, 12)
    paper = combine(method, rows, scale="paper")
    for factor, expected in ((0.5, 0.5 * paper), (1.5, paper)):
        found = combine(method, rows, scale="paper", max_norm=factor * float(paper.norm()))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_the_papers_step_of_nash_mtl_has_one_length_for_gradients_of_any_size(size):
    assert float(combine("nash_mtl", size * normal(5, 12), scale="paper").norm()) == pytest.approx(5**0.5)
