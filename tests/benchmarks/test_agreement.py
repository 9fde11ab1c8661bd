"""The implementations of each benchmark compute the same result, compared with a definition or with each other."""

import dataclasses
import itertools

import pytest
import torch

from tests.benchmarks import backward, combine, maml

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
VECTORS, HEADS_OF_IMAGES = backward.mlp(3, 4, 6), backward.conv4(2, 3, 16, 4)
SINUSOIDS, FEW_SHOT_IMAGES = maml.sinusoids(3, 4), maml.images(2, 3, 16, 4)
SETTINGS = [VECTORS, HEADS_OF_IMAGES, SINUSOIDS, FEW_SHOT_IMAGES]


def double(setting):
    return dataclasses.replace(setting, dtype=torch.float64)


def tensors(batch):
    return [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("source", [*SETTINGS, combine.Gradients(4, 100)], ids=lambda one: getattr(one, "title", None))
def test_inputs_of_a_round_are_the_same_every_time_and_those_of_two_rounds_differ(source):
    one, again, other = ([x.clone() for x in tensors(source.batch(number))] for number in (3, 3, 4))
    assert all(map(torch.equal, one, again))
    assert not all(map(torch.equal, one, other))


@pytest.mark.parametrize("setting", [VECTORS, HEADS_OF_IMAGES], ids=lambda one: getattr(one, "title", None))
def test_steps_of_means_compute_the_gradient_of_the_mean_loss_and_keep_the_parameters(setting):
    exact = double(setting)
    network, batch = exact.network(), exact.batch(1)
    features = network.encoder(batch.inputs)
    losses = [(head(features) - y).square().mean() for head, y in zip(network.heads, batch.targets, strict=True)]
    gradients = torch.autograd.grad(torch.stack(losses).mean(), [*network.encoder.parameters()])
    expected = torch.cat([one.flatten() for one in gradients])
    steps = backward.steps(["none", "pcgrad"], exact)
    for label, step in steps.items():
        step(batch)
        assert all(head.weight.grad is not None for head in step.network.heads), label
        assert all(map(torch.equal, step.network.parameters(), network.parameters())), label
        if label in backward.MEANS:
            factor = exact.tasks if label == backward.SUMMED else 1
            found = backward.gradient(step.network.encoder)
            torch.testing.assert_close(found, factor * expected, **CLOSE, msg=label)
    assert set(backward.MEANS) < set(steps)


def test_combine_computes_the_mean_and_the_statistics_of_the_rows():
    batch = combine.Gradients(3, 20_000).batch(0)  # more columns than a block of the Gramian, and not a multiple
    made, _ = combine.workloads(["none"], 3)
    rows = batch.rows.double()
    mean, gramian = rows.mean(0), rows @ rows.T
    for label in (combine.FLOOR, combine.SECOND_FLOOR, combine.PLAIN):
        found, direction = made[label](batch)
        torch.testing.assert_close(found.double(), gramian, rtol=1e-5, atol=1e-4 * float(gramian.diagonal().min()))
        torch.testing.assert_close(direction.double(), mean, rtol=1e-5, atol=1e-6)
    for label in (combine.READ, "none", "torchjd Mean"):
        torch.testing.assert_close(made[label](batch).double(), mean, rtol=1e-5, atol=1e-6)


def test_a_peer_of_combine_is_the_same_method():
    source, (made, peers) = combine.Gradients(2, 500), combine.workloads([], 2)
    for number, (text, peer) in itertools.product(range(3), peers.items()):
        if text not in ("graddrop", "gradnorm"):  # random signs; TorchJD has no GradNorm
            batch = source.batch(number)
            cosine = torch.cosine_similarity(made[text](batch).double(), made[peer](batch).double(), dim=0)
            assert cosine > 0.99, (text, number)


@pytest.mark.parametrize("setting", [SINUSOIDS, FEW_SHOT_IMAGES], ids=lambda one: getattr(one, "title", None))
def test_meta_steps_of_the_same_order_compute_the_same_gradient_and_keep_the_parameters(setting, monkeypatch):
    monkeypatch.setattr(maml, "FOR_SINUSOIDS", ('maml(engine="loop")',))  # compiling takes half a minute
    monkeypatch.setattr(maml, "FOR_IMAGES", ())  # bfloat16 is not exact
    exact = double(setting)
    steps, notes = maml.steps([], exact)
    found = {}
    for label, step in steps.items():
        step(exact.batch(1))
        found[label] = backward.gradient(step.network)
        assert all(map(torch.equal, step.network.parameters(), exact.network().parameters())), label
    first_order = {label: found.pop(label) for label in (maml.FIRST_ORDER, "maml(first_order=true)")}
    for label, gradient in found.items():
        torch.testing.assert_close(gradient, found[maml.BY_HAND], **CLOSE, msg=label)
    torch.testing.assert_close(*first_order.values(), **CLOSE)
    assert not torch.allclose(first_order[maml.FIRST_ORDER], found[maml.BY_HAND], rtol=1e-3)
    assert notes == []
