"""Dynamic weight average against TorchJD's, step by step, and whose history counts."""

from __future__ import annotations

import pytest
import torch
import torchjd.scalarization

import gradhomog
from gradhomog import OptionError
from gradhomog_plugins.dwa import weights as weights_of
from tests.plugins.from_losses import assert_pure, gradient_of, weights

ROWS = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize(("period", "temperature"), [(1, 2.0), (4, 2.0), (4, 0.3)])
def test_over_five_epochs_every_direction_is_the_gradient_of_torchjds(period, temperature):
    generator = torch.Generator().manual_seed(period)
    theirs = torchjd.scalarization.DWA(temperature)
    pipe = gradhomog.pipeline(f"dwa(period={period}, temperature={temperature}, scale='paper')")
    for _ in range(5):
        for _ in range(period):
            losses = torch.rand(3, generator=generator, dtype=torch.float64) + 0.1
            found = pipe.combine(ROWS, losses)
            torch.testing.assert_close(found, gradient_of(theirs, lambda point: point, losses), rtol=1e-12, atol=0)
        theirs.step()


def test_the_mean_scale_divides_the_papers_step_by_the_number_of_tasks():
    pipe, paper = gradhomog.pipeline("dwa(period=1)"), gradhomog.pipeline("dwa(period=1, scale='paper')")
    for losses in ([1.0, 2.0, 3.0], [0.5, 2.0, 2.0], [0.4, 1.0, 1.0]):
        values = torch.tensor(losses, dtype=torch.float64)
        torch.testing.assert_close(3 * pipe.combine(ROWS, values), paper.combine(ROWS, values))


def test_a_domain_that_misses_an_epoch_keeps_its_last_two_and_a_new_one_counts_as_standing_still():
    pipe = gradhomog.pipeline("dwa(period=1, key='domain')")
    for losses, domains in (([1.0, 1.0], "ab"), ([0.5, 0.8], "ab"), ([3.0, 3.0], "cd")):
        pipe.combine(torch.eye(2), torch.tensor(losses), domains=list(domains))
    found = weights(pipe, [9.0, 9.0, 9.0], domains=["b", "c", "a"])
    expected = torch.softmax(torch.tensor([0.8, 1.0, 0.5], dtype=torch.float64) / 2, dim=0) * 3
    torch.testing.assert_close(found, expected)


def test_two_tasks_of_one_domain_are_averaged_into_one_history():
    pipe = gradhomog.pipeline("dwa(period=1, key='domain')")
    for losses, domains in (([1.0, 3.0, 1.0], "aab"), ([1.0, 1.0], "ab")):
        weights(pipe, losses, domains=list(domains))
    found = weights(pipe, [1.0, 1.0], domains=["a", "b"])
    torch.testing.assert_close(found, 2 * torch.softmax(torch.tensor([0.5, 1.0], dtype=torch.float64) / 2, dim=0))


def test_losses_of_zero_stand_still_or_take_all_weight():
    still = gradhomog.pipeline("dwa(period=1)")
    assert weights(still, [0.0, 0.0, 0.0], steps=3).tolist() == [1, 1, 1]
    rising = gradhomog.pipeline("dwa(period=1)")
    weights(rising, [0.0, 1.0])
    weights(rising, [1e-30, 1.0])
    assert weights(rising, [1.0, 1.0]).tolist() == pytest.approx([2, 0])


@pytest.mark.parametrize(
    ("text", "losses", "message"),
    [
        ("dwa(temperature=0)", [1.0], "`temperature` must be positive"),
        ("dwa(period=0)", [1.0], "`period` must be at least 1"),
        ("dwa", [1.0, -1.0], r"dwa: losses must not be negative.*; task 1 has -1\.0"),
        ("dwa(key='domain')", [1.0], "needs to know the domain"),
    ],
)
def test_what_has_no_ratio_or_is_out_of_range_is_refused(text, losses, message):
    with pytest.raises(OptionError, match=message):
        weights(text, losses)


def test_the_weights_are_a_pure_function_of_the_rates():
    assert_pure(lambda rates: weights_of(rates, 2.0), torch.tensor([0.5, 0.9, 1.1], dtype=torch.float64))
