"""Dynamic weight average against TorchJD's, step by step, and the history of each key."""

import pytest
import torch
import torchjd.scalarization

import gradhomog
from tests.plugins.from_losses import gradient_of, weights

ROWS = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize(("period", "temperature"), [(1, 2.0), (4, 2.0), (4, 0.3)])
def test_over_five_epochs_every_direction_is_the_gradient_of_torchjds_loss(period, temperature):
    generator = torch.Generator().manual_seed(period)
    theirs = torchjd.scalarization.DWA(temperature)
    pipe = gradhomog.pipeline(f"dwa(period={period}, temperature={temperature}, scale='paper')")
    for _ in range(5):
        for _ in range(period):
            losses = torch.rand(3, generator=generator, dtype=torch.float64) + 0.1
            found = pipe.combine(ROWS, losses)
            torch.testing.assert_close(found, gradient_of(theirs, lambda point: point, losses), rtol=1e-12, atol=0)
        theirs.step()


def test_a_domain_absent_for_an_epoch_keeps_its_last_two_means_and_a_new_one_has_rate_one():
    pipe = gradhomog.pipeline("dwa(period=1)")
    for losses, domains in (([1.0, 1.0], "ab"), ([0.5, 0.8], "ab"), ([3.0, 3.0], "cd")):
        pipe.combine(torch.eye(2), torch.tensor(losses), domains=list(domains))
    found = weights(pipe, [9.0, 9.0, 9.0], domains=["b", "c", "a"])
    expected = torch.softmax(torch.tensor([0.8, 1.0, 0.5], dtype=torch.float64) / 2, dim=0) * 3
    torch.testing.assert_close(found, expected)


def test_two_tasks_of_one_domain_are_averaged_into_one_history():
    pipe = gradhomog.pipeline("dwa(period=1)")
    for losses, domains in (([1.0, 3.0, 1.0], "aab"), ([1.0, 1.0], "ab")):
        weights(pipe, losses, domains=list(domains))
    found = weights(pipe, [1.0, 1.0], domains=["a", "b"])
    torch.testing.assert_close(found, 2 * torch.softmax(torch.tensor([0.5, 1.0], dtype=torch.float64) / 2, dim=0))


def test_losses_of_zero_have_rate_one_and_a_loss_that_rises_from_zero_takes_all_weight():
    still = gradhomog.pipeline("dwa(period=1)")
    assert weights(still, [0.0, 0.0, 0.0], steps=3).tolist() == [1, 1, 1]
    rising = gradhomog.pipeline("dwa(period=1)")
    weights(rising, [0.0, 1.0])
    weights(rising, [1e-30, 1.0])
    assert weights(rising, [1.0, 1.0]).tolist() == pytest.approx([2, 0])


def test_a_temperature_next_to_zero_gives_all_weight_to_the_slowest():
    pipe = gradhomog.pipeline("dwa(period=1, temperature=1e-320)")
    weights(pipe, [1.0, 1.0])
    weights(pipe, [0.5, 0.9])
    assert weights(pipe, [0.5, 0.9]).tolist() == [0, 2]
