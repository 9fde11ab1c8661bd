"""CAVIA: rows against finite differences, a closed form and hand-written inner loops; both kinds of context."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gradhomog import OptionError, TaskBatch
from gradhomog_adapters.cavia import CAVIA
from tests.adapters.few_shot import assert_rows_are_derivatives, networks, tasks


def networks_with_context_input(context):
    """Return networks whose first layer accepts inputs with the context appended."""
    encoder, head = networks()
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3 + context, 6).double(), *encoder[1:]), head


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("on", ["features", "inputs"])
def test_rows_are_derivatives(on, engine):
    pair = networks(norm=True) if on == "features" else networks_with_context_input(2)
    learner = CAVIA(*pair, context=2, on=on, inner_lr=0.5, inner_steps=3, engine=engine)
    names = ["encoder.0.weight", "head.weight", *(["learner.film.weight"] if on == "features" else [])]
    assert_rows_are_derivatives(learner, tasks()[0], names)


def test_images_receive_the_context_as_constant_channels():
    encoder = nn.Sequential(nn.Conv2d(1 + 2, 4, 3), nn.Tanh(), nn.Flatten()).double()
    seen = []
    encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    learner = CAVIA(encoder, nn.Linear(4 * 9, 2).double(), context=2, on="inputs", inner_steps=1, engine="loop")
    x, y = torch.randn(1, 4, 1, 5, 5, dtype=torch.float64), torch.tensor([[0, 1, 0, 1]])
    learner.rows(TaskBatch(x, y, x, y))
    context = seen[-1][:, 1:]
    assert bool((context == context[:1, :, :1, :1]).all())
    assert bool((context != 0).all())
    assert torch.equal(seen[0][:, 1:], torch.zeros_like(context))


def test_a_head_without_a_linear_layer_cannot_be_modulated():
    with pytest.raises(OptionError, match="`head` must start with a torch"):
        CAVIA(nn.Linear(3, 2), nn.Identity())


def test_support_statistics_of_a_head_are_those_of_modulated_features():
    encoder, head = networks()
    head = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    learner = CAVIA(encoder, head, context=2, inner_lr=0.5, inner_steps=2, norm="support")
    film, task = learner.extra_modules["film"].weight.detach(), tasks()[1]

    def hidden(x, phi):
        gamma, beta = (film @ phi).chunk(2)
        return head[0]((1 + gamma) * encoder(x) + beta)

    def outputs(x, statistics):
        return head[3](torch.tanh((x - statistics.mean(0)) / (statistics.var(0, unbiased=False) + 1e-5).sqrt()))

    phi = torch.zeros(2, dtype=torch.float64)
    for _ in range(2):
        phi.requires_grad_()
        support = hidden(task.support_x, phi)
        (gradient,) = torch.autograd.grad(cross_entropy(outputs(support, support), task.support_y), phi)
        phi = (phi - 0.5 * gradient).detach()
    expected = outputs(hidden(task.query_x, phi), hidden(task.support_x, phi)).detach()
    torch.testing.assert_close(learner.predict(task.support_x, task.support_y, task.query_x), expected)


def test_on_features_the_support_set_is_encoded_once():
    encoder, head = networks()
    calls = []
    encoder.register_forward_hook(lambda *_: calls.append(1))
    CAVIA(encoder, head, inner_steps=5, engine="loop").rows(tasks(count=1))
    assert len(calls) == 2  # support set and query set
