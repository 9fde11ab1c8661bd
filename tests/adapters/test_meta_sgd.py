"""Meta-SGD: trained rates; rows against finite differences, MAML and a closed form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradhomog import TaskBatch
from gradhomog_adapters.maml import MAML
from gradhomog_adapters.meta_sgd import MetaSGD
from tests.adapters.few_shot import networks, tasks


@pytest.mark.parametrize("first_order", [False, True])
def test_equal_rates_give_maml(first_order):
    ours = MetaSGD(*networks(), rates=0.1, inner_steps=3, first_order=first_order, engine="loop").rows(tasks()).jacobian
    maml = MAML(*networks(), inner_lr=0.1, inner_steps=3, first_order=first_order, engine="loop").rows(tasks()).jacobian
    for name, rows in maml.items():
        torch.testing.assert_close(ours[name], rows, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("first_order", [False, True])
def test_a_quadratic_has_the_closed_form(first_order):
    # L_S = ½ a θ², L_Q = ½ (θ − t)², one step: θ' = (1 − αa)θ.
    # W.r.t. θ: (1 − αa)(θ' − t), first order θ' − t; w.r.t. α: −aθ(θ' − t).
    head, alpha = nn.Linear(1, 1, bias=False).double(), 0.3
    x = torch.full((1, 4, 1), 1.5, dtype=torch.float64)
    ones = torch.ones(1, 4, 1, dtype=torch.float64)
    batch = TaskBatch(x, 0 * x, ones, 2 * ones)
    learner = MetaSGD(
        nn.Identity(), head, rates=alpha, first_order=first_order, loss=lambda out, y: (out - y).square().mean() / 2
    )
    theta, a = head.weight.detach(), 1.5**2
    error = (1 - alpha * a) * theta - 2
    rows = learner.rows(batch).jacobian
    torch.testing.assert_close(rows["head.weight"][0], error * (1 if first_order else 1 - alpha * a))
    torch.testing.assert_close(rows["learner.rates.head.weight"][0], -a * theta * error)


def test_initial_rates_are_uniform_from_a_separate_generator():
    state = torch.get_rng_state()
    encoder, head = networks()
    after = torch.get_rng_state()
    drawn = [MetaSGD(encoder, head, rates=(0.2, 0.3), seed=seed).extra_modules.state_dict() for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), after)
    assert not torch.equal(state, after)  # advanced by the initialization of the networks
    values = torch.cat([value.flatten() for value in drawn[0].values()])
    assert 0.2 <= values.min() < 0.22
    assert 0.28 < values.max() <= 0.3
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
    assert not torch.equal(drawn[0]["rates.head.weight"], drawn[2]["rates.head.weight"])


def test_frozen_rates_keep_their_values():
    learner = MetaSGD(*networks(), rates=0.1, inner_steps=3, engine="loop")
    for parameter in learner.extra_modules.parameters():
        parameter.requires_grad_(False)
    maml = MAML(*networks(), inner_lr=0.1, inner_steps=3, engine="loop").rows(tasks()).jacobian
    rows = learner.rows(tasks()).jacobian
    assert set(rows) == set(maml)
    torch.testing.assert_close(rows["head.weight"], maml["head.weight"], rtol=1e-12, atol=1e-15)
