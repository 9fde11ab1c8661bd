"""Adapted parameters and rows of MAML: selected, frozen, tied and unused parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradhomog import TaskBatch
from gradhomog_adapters.maml import MAML
from tests.adapters.few_shot import networks, tasks


def test_only_the_selected_parameters_are_adapted_and_all_have_rows():
    encoder, head = networks()
    learner = MAML(encoder, head, inner_lr=0.1, inner_steps=2, adapt="head.*")
    batch = tasks(1)
    task = batch[0]
    rows = learner.rows(batch)
    weight, bias = head.weight, head.bias
    z = encoder(task.support_x)
    for _ in range(2):
        loss = nn.functional.cross_entropy(z @ weight.T + bias, task.support_y)
        gw, gb = torch.autograd.grad(loss, (weight, bias), create_graph=True)
        weight, bias = weight - 0.1 * gw, bias - 0.1 * gb
    loss = nn.functional.cross_entropy(encoder(task.query_x) @ weight.T + bias, task.query_y)
    for (name, parameter), row in zip(learner.named_parameters().items(), rows.jacobian.values(), strict=True):
        expected = torch.autograd.grad(loss, parameter, retain_graph=True)[0]
        torch.testing.assert_close(row[0], expected, rtol=1e-10, atol=1e-13, msg=name)


def test_frozen_parameters_are_constants_with_no_row():
    encoder, head = networks()
    encoder[0].weight.requires_grad_(False)
    rows = MAML(encoder, head).rows(tasks())
    assert "encoder.0.weight" not in rows.jacobian
    assert "encoder.0.bias" in rows.jacobian


def test_a_parameter_frozen_after_creation_is_a_constant():
    encoder, head = networks()
    learner = MAML(encoder, head, inner_lr=0.1)
    encoder[0].bias.requires_grad_(False)
    assert "encoder.0.bias" not in learner.rows(tasks()).jacobian


@pytest.mark.parametrize("first_order", [False, True])
def test_the_head_has_rows_if_the_encoder_is_frozen_or_has_no_parameters(first_order):
    batch = tasks()
    encoder, head = networks()
    for parameter in encoder.parameters():
        parameter.requires_grad_(False)
    frozen = MAML(encoder, head, inner_lr=0.1, first_order=first_order).rows(batch)
    assert set(frozen.jacobian) == {"head.weight", "head.bias"}
    assert float(frozen.feature_grads[0].abs().max()) > 0
    bare = MAML(nn.Identity(), nn.Linear(3, 3).double(), inner_lr=0.1, first_order=first_order).rows(batch)
    assert float(bare.jacobian["head.weight"].abs().max()) > 0


def test_tied_parameters_have_one_row_that_is_the_sum_over_their_uses():
    torch.manual_seed(0)
    encoder, head = nn.Linear(3, 3, bias=False).double(), nn.Linear(3, 3, bias=False).double()
    head.weight = encoder.weight
    learner = MAML(encoder, head, inner_lr=0.1, inner_steps=2)
    batch = tasks(1)
    rows = learner.rows(batch)
    assert list(rows.jacobian) == ["encoder.weight"]
    w = encoder.weight
    for _ in range(2):
        loss = nn.functional.cross_entropy(batch[0].support_x @ w.T @ w.T, batch[0].support_y)
        w = w - 0.1 * torch.autograd.grad(loss, w, create_graph=True)[0]
    loss = nn.functional.cross_entropy(batch[0].query_x @ w.T @ w.T, batch[0].query_y)
    torch.testing.assert_close(rows.jacobian["encoder.weight"][0], torch.autograd.grad(loss, encoder.weight)[0])


def test_a_parameter_that_the_loss_does_not_use_has_a_zero_row():
    encoder, head = networks()
    encoder.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    rows = MAML(encoder, head, inner="adam").rows(tasks())
    assert torch.equal(rows.jacobian["encoder.unused"], torch.zeros(3, 2, dtype=torch.float64))


def test_dead_relus_under_adam_give_finite_rows():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    nn.init.constant_(encoder[0].bias, -100.0)
    batch = tasks()
    batch = TaskBatch(batch.support_x.float(), batch.support_y, batch.query_x.float(), batch.query_y)
    rows = MAML(encoder, nn.Linear(4, 3), inner="adam", inner_steps=3).rows(batch)
    assert all(torch.isfinite(value).all() for value in rows.jacobian.values())
