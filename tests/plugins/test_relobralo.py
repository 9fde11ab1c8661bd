"""ReLoBRaLo against its recursion written out, its random lookback, and losses of zero."""

import pytest
import torch

import gradhomog
from gradhomog_plugins.relobralo import loss_ratios
from tests.plugins.from_losses import weights

LOSSES = 0.1 + torch.rand(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def recursion(sequence, alpha, temperature, lookbacks):
    """The weights of every step: ones, then λ̂ of the second step, then averages of λ̂, started again at lookbacks."""

    def balanced(losses, reference):
        return len(losses) * torch.softmax(losses / (temperature * reference), dim=0)

    found = [torch.ones(3, dtype=torch.float64), balanced(sequence[1], sequence[0])]
    for t in range(2, len(sequence)):
        history = balanced(sequence[t], sequence[0]) if lookbacks[t] else found[-1]
        found.append(alpha * history + (1 - alpha) * balanced(sequence[t], sequence[t - 1]))
    return torch.stack(found)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(("rho", "lookback"), [(1.0, False), (0.0, True)])
def test_without_chance_every_step_is_that_of_the_recursion(temperature, rho, lookback):
    pipe = gradhomog.pipeline(f"relobralo(alpha=0.7, rho={rho}, temperature={temperature})")
    found = torch.stack([weights(pipe, losses) for losses in LOSSES])
    torch.testing.assert_close(found, recursion(LOSSES, 0.7, temperature, [lookback] * 12))


def test_by_chance_every_step_is_the_recursion_with_or_without_a_lookback():
    pipe, lookbacks = gradhomog.pipeline("relobralo(alpha=0.7, rho=0.5, temperature=1)"), []
    for t, losses in enumerate(LOSSES):
        found = weights(pipe, losses)
        if t >= 2:
            paths = [recursion(LOSSES[: t + 1], 0.7, 1.0, [None, None, *lookbacks, last])[-1] for last in (False, True)]
            matches = [bool(torch.allclose(found, path, rtol=1e-9)) for path in paths]
            assert sum(matches) == 1
            lookbacks.append(matches[1])
    assert set(lookbacks) == {False, True}


def test_the_papers_scale_is_n_times_the_mean():
    mean, paper = gradhomog.pipeline("relobralo"), gradhomog.pipeline("relobralo(scale='paper')")
    for losses in LOSSES[:3]:
        torch.testing.assert_close(weights(paper, losses), 3 * weights(mean, losses))


def test_the_unit_of_a_loss_changes_nothing():
    units = torch.tensor([1e-12, 1.0, 1e12], dtype=torch.float64)
    pipes = [gradhomog.pipeline("relobralo(alpha=0.5, rho=0.5)") for _ in range(2)]
    for losses in LOSSES:
        expected, found = weights(pipes[0], losses), weights(pipes[1], units * losses)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_a_new_domain_counts_as_constant_and_an_absent_one_keeps_its_state():
    pipe = gradhomog.pipeline("relobralo(alpha=0, rho=1, temperature=1)")
    weights(pipe, [1.0, 1.0], domains=["a", "b"])
    weights(pipe, [1.0, 1.0], domains=["c", "d"])
    found = weights(pipe, [0.5, 7.0, 2.0], domains=["a", "new", "b"])
    torch.testing.assert_close(found, 3 * torch.softmax(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64), dim=0))


def test_a_loss_that_rises_from_zero_takes_all_weight_and_losses_that_stay_zero_are_constant():
    found = loss_ratios(torch.tensor([0.0, 1e-9, 2.0, 0.0]).double(), torch.tensor([0.0, 0.0, 1.0, 4.0]).double())
    assert found.tolist() == [1, 1e6, 2, 0]
    assert loss_ratios(torch.tensor([1e7, 1.0]).double(), torch.tensor([1.0, 1e-9]).double()).tolist() == [1e6, 1e6]
    still = gradhomog.pipeline("relobralo(rho=0.5)")
    for _ in range(4):
        assert weights(still, [0.0, 0.0]).tolist() == [1, 1]
    rising = gradhomog.pipeline("relobralo(alpha=0)")
    weights(rising, [0.0, 1.0])
    assert weights(rising, [1e-30, 1.0]).tolist() == [2, 0]
    large = gradhomog.pipeline("relobralo(alpha=0, temperature=1e6)")
    weights(large, [0.0, 1.0])
    expected = 2 * torch.softmax(torch.tensor([1.0, 0.0], dtype=torch.float64), dim=0)
    torch.testing.assert_close(weights(large, [1.0, 1.0]), expected, rtol=1e-5, atol=0)
