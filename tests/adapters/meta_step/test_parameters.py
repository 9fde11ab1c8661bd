"""Rows of `meta_step` for frozen, unused, tied and unadapted parameters."""

from __future__ import annotations

import pytest
import torch
import torchopt
from torch import nn
from torch.nn.functional import mse_loss

import gradhomog
from gradhomog import OptionError
from tests.adapters.meta_step.loops import STEPS, loop, network, rows_of, tasks
from tests.adapters.meta_step.reference import INNER, reference_row, sgd


def test_frozen_parameters_have_no_row_and_keep_their_grad():
    net, batch = network(), tasks()
    net[0].requires_grad_(False)
    net[0].weight.grad = torch.ones_like(net[0].weight)
    # MetaSGD(net) raises for frozen parameters.
    rows = rows_of(net, batch, lambda net: torchopt.MetaSGD(net[2], lr=0.1))
    assert list(rows) == ["2.weight", "2.bias"]
    assert torch.equal(net[0].weight.grad, torch.ones_like(net[0].weight))
    assert net[2].weight.grad is not None


def test_a_parameter_that_no_loss_depends_on_has_a_zero_row_and_no_grad_as_after_backward():
    net, batch = network(), tasks()
    net.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    net.unused.grad = torch.ones_like(net.unused)
    rows = rows_of(net, batch, INNER["adam"][1])
    assert torch.equal(rows["unused"], torch.zeros(3, 2, dtype=torch.float64))
    assert net.unused.grad is None


def test_a_part_of_the_network_can_be_adapted_and_all_parameters_have_rows():
    net, (task, *_) = network(), tasks()
    rows = rows_of(net, [task], lambda net: torchopt.MetaSGD(net[2], lr=0.1))
    weight, bias = net[2].weight, net[2].bias
    for _ in range(STEPS):
        loss = mse_loss(net[:2](task[0]) @ weight.T + bias, task[1])
        gradients = torch.autograd.grad(loss, (weight, bias), create_graph=True)
        weight, bias = weight - 0.1 * gradients[0], bias - 0.1 * gradients[1]
    loss = mse_loss(net[:2](task[2]) @ weight.T + bias, task[3])
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(rows[name][0], torch.autograd.grad(loss, parameter, retain_graph=True)[0])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = (nn.Linear(3, 3, bias=False).double() for _ in range(2))
        self.two.weight = self.one.weight
        self.head = nn.Linear(3, 2).double()

    def forward(self, x):
        return self.head(self.two(self.one(x)))


def test_an_inner_loop_that_splits_a_tied_parameter_raises_with_its_names():
    net = Tied()
    with pytest.raises(OptionError, match=r"`one\.weight` and `two\.weight` are the same \(tied\) parameter"):
        loop(net, gradhomog.pipeline("none"), tasks(), INNER["sgd"][1])
    assert net.one.weight is net.two.weight


def test_a_tied_parameter_that_is_not_adapted_has_one_row_that_is_the_sum_over_its_uses():
    net, (task, *_) = Tied(), tasks()
    rows = rows_of(net, [task], lambda net: torchopt.MetaSGD(net.head, lr=0.1))
    assert list(rows) == ["one.weight", "head.weight", "head.bias"]
    w, weight, bias = net.one.weight, net.head.weight, net.head.bias
    for _ in range(STEPS):
        loss = mse_loss(task[0] @ w.T @ w.T @ weight.T + bias, task[1])
        gradients = torch.autograd.grad(loss, (weight, bias), create_graph=True)
        weight, bias = weight - 0.1 * gradients[0], bias - 0.1 * gradients[1]
    loss = mse_loss(task[2] @ w.T @ w.T @ weight.T + bias, task[3])
    torch.testing.assert_close(rows["one.weight"][0], torch.autograd.grad(loss, w)[0])


def test_a_layer_that_is_registered_twice_has_one_row():
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).double()
    net = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(3, 2).double())
    rows, expected = rows_of(net, tasks(), INNER["sgd"][1]), [reference_row(net, task, sgd) for task in tasks()]
    torch.testing.assert_close(rows["0.weight"], torch.stack([row["0.weight"] for row in expected]))
