"""ALFA: rows against finite differences, a hand-written inner loop, and MAML for a constant generator."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from gradhomog_adapters.alfa import ALFA
from gradhomog_adapters.maml import MAML
from tests.adapters.few_shot import assert_rows_are_derivatives, networks, tasks


def make_generator_constant(learner, rate, decay):
    """Set the generator to return one rate and one decay for all tensors."""
    last, count = learner.extra_modules["generator"][2], len(learner.adapted)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([rate] * count + [decay] * count))
    return learner


@pytest.mark.parametrize("recompute", [False, True])
def test_rows_are_derivatives_if_the_generator_ignores_gradients(recompute):
    # The gradients in τ are constants, so rows are exact derivatives if the generator ignores them.
    learner = ALFA(*networks(), inner_lr=0.3, inner_weight_decay=0.1, inner_steps=2, recompute=recompute)
    with torch.no_grad():
        learner.extra_modules["generator"][0].weight[:, len(learner.adapted) :] = 0
        learner.extra_modules["generator"][2].bias += 1
    names = [
        "encoder.0.weight", "head.bias", "learner.generator.2.weight", "learner.rates.head.weight",
        "learner.decays.encoder.0.weight",
    ]  # fmt: skip
    assert_rows_are_derivatives(learner, tasks()[0], names)


@pytest.mark.parametrize("first_order", [False, True])
def test_a_generator_of_ones_and_no_decay_gives_maml(first_order):
    options = {"inner_steps": 3, "first_order": first_order, "engine": "loop"}
    ours = make_generator_constant(ALFA(*networks(), inner_lr=0.1, **options), 1.0, 0.0).rows(tasks()).jacobian
    for name, rows in MAML(*networks(), inner_lr=0.1, **options).rows(tasks()).jacobian.items():
        torch.testing.assert_close(ours[name], rows, rtol=1e-12, atol=1e-15)


def test_predictions_equal_a_hand_written_inner_loop():
    encoder, head = networks()
    learner, task = ALFA(encoder, head, inner_lr=0.5, inner_weight_decay=0.2, inner_steps=2, seed=3), tasks()[1]
    network = torch.nn.ModuleDict({"encoder": encoder, "head": head})
    theta = {name: p.detach().clone() for name, p in network.named_parameters()}

    def outputs(x, at):
        features = functional_call(encoder, {n[8:]: t for n, t in at.items() if n.startswith("encoder.")}, (x,))
        return functional_call(head, {n[5:]: t for n, t in at.items() if n.startswith("head.")}, (features,))

    for _ in range(2):
        at = {name: tensor.requires_grad_() for name, tensor in theta.items()}
        gradients = torch.autograd.grad(cross_entropy(outputs(task.support_x, at), task.support_y), [*at.values()])
        tau = torch.stack([t.detach().mean() for t in at.values()] + [s.mean() for s in gradients])
        alpha, beta = learner.extra_modules["generator"](tau).detach().chunk(2)
        theta = {
            name: ((1 - 0.5 * 0.2 * beta[i]) * at[name] - 0.5 * alpha[i] * gradients[i]).detach()
            for i, name in enumerate(at)
        }
    expected = outputs(task.query_x, theta)
    torch.testing.assert_close(learner.predict(task.support_x, task.support_y, task.query_x), expected)


def test_further_steps_than_in_training_use_the_last_rates():
    learner = ALFA(*networks(), inner_steps=2, test_steps=5)
    task = tasks()[0]
    assert bool(learner.predict(task.support_x, task.support_y, task.query_x).isfinite().all())


def test_initial_weights_of_the_generator_have_a_separate_seed():
    encoder, head = networks()
    state = torch.get_rng_state()
    first, same, other = (ALFA(encoder, head, seed=seed).extra_modules["generator"][0].weight for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
