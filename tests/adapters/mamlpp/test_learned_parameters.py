"""Rates, scales and shifts of MAML++ per inner step."""

from __future__ import annotations

import pytest
import torch
import torchopt
from torch import nn

from gradhomog import OptionError
from gradhomog_adapters.mamlpp import MAMLPP
from tests.adapters.few_shot import networks, tasks
from tests.adapters.mamlpp.learners import make_learner


def test_scales_and_shifts_per_step_replace_those_of_the_layer():
    learner = MAMLPP(*networks(True), inner_steps=3)
    names = set(learner.named_parameters())
    assert {"learner.norm.encoder.1.weight", "learner.norm.encoder.1.bias", "learner.rates.encoder.0.bias"} < names
    assert not names & {"encoder.1.weight", "encoder.1.bias", "learner.rates.encoder.1.weight"}
    before = learner.evaluate(tasks())
    learner.encoder[1].weight.data.fill_(torch.nan)
    assert learner.evaluate(tasks()) == before


def test_a_normalization_or_a_rate_that_is_frozen_is_a_constant():
    expected = make_learner().rows(tasks())
    learner = make_learner()
    learner.extra_modules["rates"].requires_grad_(False)
    found = learner.rows(tasks())
    assert {name for name in expected.jacobian if "rates" not in name} == set(found.jacobian)
    assert all(torch.equal(found.jacobian[name], expected.jacobian[name]) for name in found.jacobian)
    learner = make_learner()
    learner.encoder[1].requires_grad_(False)  # every step then uses the layer's scale and shift
    plain = make_learner()
    for part in ("weight", "bias"):
        whole = dict(plain.extra_modules.named_parameters())[f"norm.encoder.1.{part}"]
        whole.data.copy_(getattr(plain.encoder[1], part).detach().expand(3, 6))
    assert not any("norm" in name or name.startswith("encoder.1") for name in learner.named_parameters())
    torch.testing.assert_close(learner.rows(tasks()).losses, plain.rows(tasks()).losses, rtol=1e-12, atol=0)


def test_without_batch_normalization_there_are_no_parameters_per_step():
    learner = MAMLPP(*networks(norm=False), norm="running")
    assert not any("norm" in name for name in learner.named_parameters())
    learner.step(tasks(), torch.optim.SGD(learner.parameters(), lr=0.1))
    learner.evaluate(tasks())


def test_further_steps_than_in_training_use_the_last_parameters():
    few, many = make_learner(inner_steps=2, test_steps=5), make_learner(inner_steps=5)
    for name, parameter in many.extra_modules.named_parameters():
        if parameter.dim():
            known = dict(few.extra_modules.named_parameters())[name]
            parameter.data.copy_(known[[0, 1, 1, 1, 1]])
    assert few.evaluate(tasks()) == many.evaluate(tasks())


def test_without_inner_steps_the_loss_is_that_of_the_network():
    learner, batch = MAMLPP(*networks(True), inner_steps=0), tasks(1)
    encoder, head = networks(True)
    loss = nn.functional.cross_entropy(head(encoder(batch[0].query_x)), batch[0].query_y)
    torch.testing.assert_close(learner.rows(batch).losses[0], loss.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": torchopt.sgd(lr=0.1)}, "`inner` must be a name if rates are learned"),
        ({"inner_lr": -1.0}, "`inner_lr` must be a number > 0"),
        ({"adapt": "encoder.1.*"}, "`adapt` must match more than scales and shifts"),
        ({"multi_step_steps": -1}, "`multi_step_steps` must be an integer ≥ 0"),
        ({"first_order_steps": 0.5}, "`first_order_steps` must be an integer ≥ 0"),
        ({"anneal_steps": True}, "`anneal_steps` must be an integer ≥ 0"),
        ({"final_outer_lr": float("nan")}, "`final_outer_lr` must be a number ≥ 0"),
        ({"norm": "layer"}, "`norm` must be"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(OptionError, match=message):
        MAMLPP(*networks(True), **options)
