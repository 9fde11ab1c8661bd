"""Random weights: their distribution against TorchJD and closed forms, and where they come from."""

from __future__ import annotations

import pytest
import scipy.stats
import torch
import torchjd.aggregation
import torchjd.scalarization

import gradhomog
from gradhomog import OptionError
from gradhomog_plugins.rlw import RLW
from tests.plugins.from_losses import gradient_of, quadratics, rows_and_losses

DISTRIBUTIONS = ["normal", "uniform", "dirichlet", "bernoulli", "constrained_bernoulli"]
DRAWS = 2000


def shares(distribution, tasks=4, seed=0):
    method = RLW(distribution, seed)
    return torch.stack([method._shares(tasks) for _ in range(DRAWS)])


@pytest.mark.parametrize("tasks", [1, 2, 5])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_draw_is_on_the_simplex_and_every_task_weighs_alike_on_average(distribution, tasks):
    found = shares(distribution, tasks)
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
        assert scipy.stats.ks_2samp(shares("normal")[:, task], theirs[:, task]).pvalue > 1e-3


def test_dirichlet_weights_are_uniform_on_the_simplex():
    # A component of Dirichlet(1, 1, 1, 1) is Beta(1, 3).
    assert scipy.stats.kstest(shares("dirichlet")[:, 2], scipy.stats.beta(1, 3).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("distribution", "sizes"), [("bernoulli", {1, 2, 3}), ("constrained_bernoulli", {1})])
def test_subsets_are_never_empty_and_weigh_alike(distribution, sizes):
    found = shares(distribution, tasks=3)
    chosen = (found > 0).sum(1)
    assert set(chosen.tolist()) == sizes
    assert (((found * chosen[:, None]) - (found > 0).double()).abs() < 1e-12).all()


@pytest.mark.parametrize("scale", ["mean", "paper"])
def test_the_direction_is_the_gradient_of_the_weighted_loss_in_either_scale(scale):
    theta, losses_of = quadratics()
    rows, _ = rows_and_losses(losses_of, theta)
    drawn = RLW(seed=3)._shares(4)
    found = gradhomog.pipeline(f"rlw(seed=3, scale='{scale}')").combine(rows)
    torch.testing.assert_close(found, gradient_of(torchjd.scalarization.Constant(drawn), losses_of, theta))


def test_weights_are_new_at_every_step_and_those_of_the_seed():
    pipe, other = gradhomog.pipeline("rlw"), gradhomog.pipeline("rlw(seed=1)")
    rows = torch.eye(3)
    first, second = pipe.combine(rows), pipe.combine(rows)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other.combine(rows))
    assert torch.equal(first, gradhomog.pipeline("rlw").combine(rows))


def test_an_unknown_distribution_is_refused():
    with pytest.raises(OptionError, match="`distribution` must be one of"):
        gradhomog.pipeline("rlw(distribution='cauchy')")
