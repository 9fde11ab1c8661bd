"""FAMO against TorchJD's and the paper's second evaluation of the losses, and the state of each key."""

import pytest
import torch
import torchjd.scalarization

import gradhomog
from tests.plugins.from_losses import gradient_of, quadratics, rows_and_losses, weights


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_without_smoothing_a_full_batch_gives_torchjds_directions(weight_decay):
    theta, losses_of = quadratics()
    lowest = torch.tensor([0.1, 0.2, 0.0, 0.3], dtype=torch.float64)
    theirs = torchjd.scalarization.FAMO(4, lowest, lr=0.05, weight_decay=weight_decay).double()
    options = f"smoothing=0, lr=0.05, weight_decay={weight_decay}, lowest=[0.1, 0.2, 0, 0.3]"
    pipe = gradhomog.pipeline(f"famo({options})")
    for _ in range(30):
        rows, losses = rows_and_losses(losses_of, theta)
        expected = gradient_of(theirs, losses_of, theta)
        torch.testing.assert_close(pipe.combine(rows, losses), expected, rtol=1e-6, atol=1e-8)  # their 1e-8 in D
        theta = theta - 0.02 * expected
        theirs.update(losses_of(theta))


def test_with_noise_between_the_batches_smoothing_brings_the_weights_near_to_the_papers():
    # Noise ten times as large as the decreases. In the paper it cancels: both evaluations are on one batch.
    decreases = torch.tensor([0.01, 0.005], dtype=torch.float64)
    noise = 0.05 * torch.randn(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    paper = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([paper], lr=0.025)
    pipes = {smoothing: gradhomog.pipeline(f"famo(smoothing={smoothing}, weight_decay=0)") for smoothing in (0, 0.9)}
    for step, epsilon in enumerate(noise):
        paper.grad = torch.autograd.grad(torch.softmax(paper, 0), paper, decreases)[0]
        optimizer.step()
        for pipe in pipes.values():
            pipe.combine(torch.eye(2), (epsilon - step * decreases).exp())
    preferred = {}  # difference of the logits of the second task, which falls more slowly, and the first
    for smoothing, pipe in pipes.items():
        logits = next(iter(pipe)).logits
        preferred[smoothing] = logits["1"][0] - logits["0"][0]
    expected = float(paper.detach().diff())
    assert 0 < preferred[0] < 0.3 * expected
    assert 0.6 * expected < preferred[0.9] < 1.1 * expected


def test_losses_at_their_lower_bounds_and_zero_rows_give_finite_directions():
    assert weights("famo", [0.0, 0.0], steps=3).tolist() == pytest.approx([1, 1])
    assert weights("famo", [0.0, 1.0], steps=3).tolist() == pytest.approx([2, 0], abs=1e-6)
    pipe = gradhomog.pipeline("famo")
    for _ in range(3):
        assert not pipe.combine(torch.zeros(2, 3), torch.tensor([1.0, 2.0])).any()


def test_a_domain_is_updated_from_its_second_occurrence_on():
    pipe = gradhomog.pipeline("famo(smoothing=0, lr=0.1, weight_decay=0)")
    weights(pipe, [1.0, 1.0], domains=["a", "b"])
    weights(pipe, [1.0, 7.0], domains=["c", "d"])  # new keys: no update
    found = weights(pipe, [1.0, 0.5, 1.0], domains=["a", "b", "new"])
    # Adam's first step has the length of its rate: up for the constant loss, down for the one that fell.
    logits = torch.tensor([0.1, -0.1, 0.0], dtype=torch.float64) - torch.tensor([1.0, 0.5, 1.0]).log()
    assert found.tolist() == pytest.approx((3 * torch.softmax(logits, 0)).tolist(), rel=1e-5)


def test_two_tasks_of_one_domain_with_constant_losses_do_not_change_its_weight():
    # The logarithm of a mean is not the mean of logarithms: by the former, the domain's losses would seem to fall.
    pipe = gradhomog.pipeline("famo(weight_decay=0)")
    weights(pipe, [0.1, 10.0, 1.0], steps=5, domains=["a", "a", "b"])
    (method,) = pipe
    assert {key: moments[0] for key, moments in method.logits.items()} == pytest.approx({"a": 0.0, "b": 0.0}, abs=1e-6)
