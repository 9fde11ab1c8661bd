"""`balancer` against EnCodec's balancer and VQGAN's adaptive weight, written from their code."""

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import OptionError

WEIGHTS = {"wave": 0.1, "spectrum": 2.0, "adversarial": 4.0}
VQGAN = "balancer(average=0, primary='reconstruction', weights={'adversarial': 0.8}, scale='paper')"


def encodec(weights, decay, per_batch_item):
    """Balancer.backward(losses, y) of encodec/balancer.py; returns a function of losses and y."""
    totals, sums = dict.fromkeys(weights, 0.0), dict.fromkeys(weights, 0.0)

    def backward(losses, y):
        grads = {name: torch.autograd.grad(loss, y, retain_graph=True)[0] for name, loss in losses.items()}
        for name, grad in grads.items():
            norm = grad.flatten(1).norm(dim=1).mean() if per_batch_item else grad.norm()
            totals[name] = totals[name] * decay + float(norm)
            sums[name] = sums[name] * decay + 1
        ratios = {name: weight / sum(weights.values()) for name, weight in weights.items()}
        scales = {name: ratios[name] / (1e-12 + totals[name] / sums[name]) for name in weights}
        y.backward(sum(scales[name] * grads[name] for name in weights), retain_graph=True)

    return backward


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 10), nn.Unflatten(1, (2, 5))).double()


def losses_of(y, step):
    generator = torch.Generator().manual_seed(step)
    target = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    return {
        "wave": 100 * (y - target).abs().mean(),
        "spectrum": (torch.fft.rfft(y).abs() - torch.fft.rfft(target).abs()).square().mean(),
        "adversarial": (1 - (y * target).mean(dim=(1, 2))).relu().mean(),
    }


@pytest.mark.parametrize("per_batch_item", [True, False])
def test_training_is_that_of_encodecs_balancer(per_batch_item):
    nets = [network(), network()]
    on = {"on": "features"} if per_batch_item else {}
    pipe = gradhomog.pipeline([("balancer", {"weights": WEIGHTS, "average": 0.9, "scale": "paper", **on})])
    original = encodec(WEIGHTS, 0.9, per_batch_item)
    for step in range(6):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step + 100), dtype=torch.float64)
        for net, homogenized in zip(nets, (True, False), strict=True):
            net.zero_grad()
            y = net(x)
            losses = losses_of(y, step)
            if not homogenized:
                original(losses, y)
            elif per_batch_item:
                gradhomog.backward(losses, pipe, parameters=net, features=y)
            else:
                gradhomog.backward(losses, pipe, parameters=net, measure=y)
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter -= 0.05 * parameter.grad
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)  # its 1e-12


@pytest.mark.parametrize("factor", [1.0, 1e-7])  # the weight is bounded by 10⁴ with the second
def test_the_gradient_is_that_of_vqgans_adaptive_weight(factor):
    net = network()
    y = net(torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    reconstruction, adversarial, codebook = (y - 1).abs().mean(), -factor * y[:, 0].exp().mean(), y.square().mean()
    norms = [
        torch.autograd.grad(loss, net[2].weight, retain_graph=True)[0].norm() for loss in (reconstruction, adversarial)
    ]
    weight = 0.8 * (norms[0] / norms[1]).clamp(0, 1e4)
    expected = torch.autograd.grad(
        reconstruction + weight * adversarial + codebook, list(net.parameters()), retain_graph=True
    )
    losses = {"reconstruction": reconstruction, "adversarial": adversarial}
    total = gradhomog.loss(losses, gradhomog.pipeline(VQGAN), parameters=net, measure="2.weight") + codebook
    total.backward()
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-11)
    # With the 1e-4 of the original the weight differs by at most this part.
    original = 0.8 * (norms[0] / (norms[1] + 1e-4)).clamp(0, 1e4)
    assert abs(float(original / weight) - 1) <= 1e-4 / float(norms[1])


def test_while_the_primary_gradient_is_zero_only_losses_without_a_norm_have_an_effect():
    """Seen: the whole step was zero, where a layer before the last one is initialized with zeros."""
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    pipe = gradhomog.pipeline(VQGAN)
    result = pipe.homogenize(rows, domains=["reconstruction", "adversarial", "other"])
    torch.testing.assert_close(result.weights, torch.tensor([3.0, 0.0, 3.0], dtype=torch.float64))  # N λ
    later = pipe.homogenize(torch.eye(3, dtype=torch.float64), domains=["reconstruction", "adversarial", "other"])
    torch.testing.assert_close(later.weights, torch.tensor([3.0, 2.4, 3.0], dtype=torch.float64))


def test_weights_that_are_all_zero_raise():
    for weights, domains in (([0, 0], None), ({"a": 0, "b": 1}, ["a", "a"])):
        with pytest.raises(OptionError, match="`weights` must not all be zero"):
            gradhomog.pipeline([("balancer", {"weights": weights})]).combine(torch.eye(2), domains=domains)


def test_weights_have_mean_one_and_a_task_without_gradient_that_of_the_other_norms():
    rows = torch.diag(torch.tensor([2.0, 8.0, 0.0]))
    weights = gradhomog.pipeline("balancer(weights=[1, 3, 1])").homogenize(rows).weights
    expected = torch.tensor([1 / 2, 3 / 8, 1 / 4], dtype=torch.float64)
    torch.testing.assert_close(weights, expected / expected.mean())


def test_a_step_without_the_primary_task_raises():
    with pytest.raises(OptionError, match="`primary` must be the slot or the domain of a task in every batch"):
        gradhomog.pipeline(VQGAN).combine(torch.eye(2), domains=["adversarial", "codebook"])
