"""Meta-SGD: trained rates; rows against finite differences, MAML and a closed form."""

from __future__ import annotations

import pytest
import torch

from gradhomog_adapters.maml import MAML
from gradhomog_adapters.meta_sgd import MetaSGD
from tests.adapters.few_shot import networks, tasks


@pytest.mark.parametrize("first_order", [False, True])
def test_equal_rates_give_maml(first_order):
    ours = MetaSGD(*networks(), rates=0.1, inner_steps=3, first_order=first_order, engine="loop").rows(tasks()).jacobian
    maml = MAML(*networks(), inner_lr=0.1, inner_steps=3, first_order=first_order, engine="loop").rows(tasks()).jacobian
    for name, rows in maml.items():
        torch.testing.assert_close(ours[name], rows, rtol=1e-12, atol=1e-15)


def test_initial_rates_are_uniform_from_a_separate_generator():
    encoder, head = networks()
    state = torch.get_rng_state()
    drawn = [MetaSGD(encoder, head, rates=(0.2, 0.3), seed=seed).extra_modules.state_dict() for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), state)
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
