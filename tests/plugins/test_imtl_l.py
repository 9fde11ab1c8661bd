"""IMTL-L against TorchJD's loss under torch's Adam, and its relation to uncertainty weighting."""

from __future__ import annotations

import math

import pytest
import torch
import torchjd.scalarization

import gradhomog
from gradhomog import OptionError
from tests.plugins.from_losses import gradient_of, quadratics, rows_and_losses, weights


def test_thirty_steps_follow_torchjds_loss_with_a_separate_adam():
    theta, losses_of = quadratics(seed=1)
    theirs = torchjd.scalarization.IMTLL(4).double()
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.05)
    pipe = gradhomog.pipeline("imtl_l(lr=0.05, scale='paper')")
    for _ in range(30):
        rows, losses = rows_and_losses(losses_of, theta)
        expected = gradient_of(theirs, losses_of, theta)
        torch.testing.assert_close(pipe.combine(rows, losses), expected, rtol=1e-9, atol=1e-12)
        optimizer.zero_grad()
        theirs(losses).backward()
        optimizer.step()
        theta = theta - 0.02 * expected


@pytest.mark.parametrize(("scale", "factor"), [("mean", 1), ("paper", 2)])
def test_it_is_uncertainty_weighting_of_regression_with_steps_twice_as_long_in_the_papers_scale(scale, factor):
    generator = torch.Generator().manual_seed(0)
    ours, other = (gradhomog.pipeline(f"{name}(lr=0.1, scale='{scale}')") for name in ("imtl_l", "uw"))
    for _ in range(20):
        losses = torch.rand(3, generator=generator, dtype=torch.float64) * 4
        torch.testing.assert_close(weights(ours, losses), factor * weights(other, losses), rtol=1e-6, atol=0)


def test_at_rest_every_scaled_loss_is_one():
    losses = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    found = weights("imtl_l(lr=0.05, scale='paper')", losses, steps=300) / 3
    assert (found * losses).tolist() == pytest.approx([1, 1, 1], rel=1e-3)


def test_a_loss_of_zero_ends_at_the_bound_and_not_at_infinity():
    found = weights("imtl_l(lr=0.5, bound=2, scale='paper')", [0.0, 1.0], steps=300) / 2
    assert found.tolist() == pytest.approx([math.exp(2), 1], rel=1e-3)


def test_state_by_domain_follows_the_domain_to_another_slot():
    pipe = gradhomog.pipeline("imtl_l(lr=0.1)")
    weights(pipe, [4.0, 0.1], steps=5, domains=["large", "small"])
    found = weights(pipe, [1.0, 1.0], domains=["small", "large"])
    assert float(found[0]) > 1 > float(found[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("imtl_l(lr=0)", "`lr` must be"),
        ("imtl_l(bound=inf)", "`bound` must be"),
    ],
)
def test_options_out_of_range_raise(text, message):
    with pytest.raises(OptionError, match=message):
        weights(text, [1.0])
