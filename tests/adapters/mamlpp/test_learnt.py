"""Rates, scales and shifts that MAML++ learns step by step of the inner loop."""

from __future__ import annotations

import pytest
import torch
import torchopt
from torch import nn

from gradhomog import OptionError
from gradhomog_adapters.mamlpp import MAMLPP
from tests.adapters.few_shot import networks, tasks
from tests.adapters.mamlpp.learners import learner


def test_scales_and_shifts_by_step_stand_in_for_the_layers_own():
    made = MAMLPP(*networks(True), inner_steps=3)
    names = set(made.named_parameters())
    assert {"learner.norm.encoder.1.weight", "learner.norm.encoder.1.bias", "learner.rates.encoder.0.bias"} < names
    assert not names & {"encoder.1.weight", "encoder.1.bias", "learner.rates.encoder.1.weight"}
    before = made.evaluate(tasks())
    made.encoder[1].weight.data.fill_(torch.nan)
    assert made.evaluate(tasks()) == before


def test_a_normalization_or_a_rate_that_is_frozen_is_a_constant():
    expected = learner().rows(tasks())
    made = learner()
    made.own["rates"].requires_grad_(False)
    found = made.rows(tasks())
    assert {name for name in expected.jacobian if "rates" not in name} == set(found.jacobian)
    assert all(torch.equal(found.jacobian[name], expected.jacobian[name]) for name in found.jacobian)
    made = learner()
    made.encoder[1].requires_grad_(False)  # its own scale and shift, then, in every step
    plain = learner()
    for part in ("weight", "bias"):
        whole = dict(plain.own.named_parameters())[f"norm.encoder.1.{part}"]
        whole.data.copy_(getattr(plain.encoder[1], part).detach().expand(3, 6))
    assert not any("norm" in name or name.startswith("encoder.1") for name in made.named_parameters())
    torch.testing.assert_close(made.rows(tasks()).losses, plain.rows(tasks()).losses, rtol=1e-12, atol=0)


def test_without_batch_normalization_there_is_nothing_by_step():
    made = MAMLPP(*networks(norm=False), norm="running")
    assert not any("norm" in name for name in made.named_parameters())
    made.step(tasks(), torch.optim.SGD(made.parameters(), lr=0.1))
    made.evaluate(tasks())


def test_steps_beyond_those_of_training_do_as_the_last():
    few, many = learner(inner_steps=2, test_steps=5), learner(inner_steps=5)
    for name, parameter in many.own.named_parameters():
        if parameter.dim():
            known = dict(few.own.named_parameters())[name]
            parameter.data.copy_(known[[0, 1, 1, 1, 1]])
    assert few.evaluate(tasks()) == many.evaluate(tasks())


def test_no_inner_step_at_all_is_a_network_that_is_not_adapted():
    made, batch = MAMLPP(*networks(True), inner_steps=0), tasks(1)
    encoder, head = networks(True)
    loss = nn.functional.cross_entropy(head(encoder(batch[0].query_x)), batch[0].query_y)
    torch.testing.assert_close(made.rows(batch).losses[0], loss.detach(), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": torchopt.sgd(lr=0.1)}, "`inner` must be a name, whose rates are learnt"),
        ({"inner_lr": -1.0}, "`inner_lr` must be positive"),
        ({"adapt": "encoder.1.*"}, "`adapt` must match more than scales and shifts"),
        ({"multi_step_steps": -1}, "`multi_step_steps` must be a number of meta-steps"),
        ({"first_order_steps": 0.5}, "`first_order_steps` must be a number of meta-steps"),
        ({"anneal_steps": True}, "`anneal_steps` must be a number of meta-steps"),
        ({"final_outer_lr": float("nan")}, "`final_outer_lr` must not be negative, and finite"),
        ({"norm": "layer"}, "`norm` must be"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        MAMLPP(*networks(True), **options)
