"""Random weights: their distribution against TorchJD's and closed forms."""

import pytest
import scipy.stats
import torch
import torchjd.scalarization

from gradhomog_plugins.rlw import draw_weights
from tests.plugins.from_losses import gradient_of

DISTRIBUTIONS = ["normal", "uniform", "dirichlet", "bernoulli", "constrained_bernoulli"]
DRAWS = 2000


def draws(distribution, tasks=4):
    generator = torch.Generator().manual_seed(0)
    return torch.stack([draw_weights(tasks, distribution, generator) for _ in range(DRAWS)])


@pytest.mark.parametrize("tasks", [1, 2, 5])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_draw_is_on_the_simplex_and_the_mean_weights_are_equal(distribution, tasks):
    found = draws(distribution, tasks)
    assert float(found.min()) >= 0
    torch.testing.assert_close(found.sum(1), torch.ones(DRAWS, dtype=torch.float64))
    error = found.std(0) / DRAWS**0.5
    assert ((found.mean(0) - 1 / tasks).abs() <= 5 * error + 1e-12).all()


def test_normal_weights_are_distributed_as_torchjds():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        random = torchjd.scalarization.Random()
        theirs = torch.stack([gradient_of(random, lambda point: point, torch.zeros(4)) for _ in range(DRAWS)])
    for task in range(4):
        assert scipy.stats.ks_2samp(draws("normal")[:, task], theirs[:, task]).pvalue > 1e-3


def test_dirichlet_weights_are_uniform_on_the_simplex():
    # A component of Dirichlet(1, 1, 1, 1) is Beta(1, 3).
    assert scipy.stats.kstest(draws("dirichlet")[:, 2], scipy.stats.beta(1, 3).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("distribution", "sizes"), [("bernoulli", {1, 2, 3}), ("constrained_bernoulli", {1})])
def test_subsets_are_never_empty_and_have_equal_weights(distribution, sizes):
    found = draws(distribution, tasks=3)
    chosen = (found > 0).sum(1)
    assert set(chosen.tolist()) == sizes
    assert (((found * chosen[:, None]) - (found > 0).double()).abs() < 1e-12).all()
