"""Rows of MAML and FOMAML against a hand-written loop, finite differences, `higher` and a closed form."""

from __future__ import annotations

import copy

import higher
import pytest
import torch
import torchopt
from torch import nn

from gradhomog import Task, TaskBatch
from gradhomog_adapters.maml import MAML
from tests.adapters.few_shot import networks, tasks
from tests.adapters.quadratic import Point

INNER = {
    "sgd": lambda: torchopt.sgd(lr=0.1),
    "weight decay": lambda: torchopt.sgd(lr=0.1, weight_decay=0.05),
    "momentum": lambda: torchopt.sgd(lr=0.1, momentum=0.9),
    "dampening": lambda: torchopt.sgd(lr=0.1, momentum=0.9, dampening=0.5),
    "adam": lambda: torchopt.adam(lr=0.02, eps_root=1e-8),
    "rmsprop": lambda: torchopt.rmsprop(lr=0.02, eps=1e-3),
    "chain": lambda: torchopt.chain(torchopt.clip.clip_grad_norm(1e6), torchopt.sgd(lr=0.1)),
}


def reference_row(encoder, head, task, inner, steps, first_order):
    """One row with `torch.func` and TorchOpt only: the gradient of the loss after the inner loop."""
    both = nn.Sequential(encoder, head)
    start = {name: p.detach().clone().requires_grad_() for name, p in both.named_parameters()}

    def loss(parameters, x, y):
        return nn.functional.cross_entropy(torch.func.functional_call(both, parameters, (x,)), y)

    transformation, parameters = inner(), start
    state = transformation.init(parameters)
    for _ in range(steps):
        grads = torch.autograd.grad(
            loss(parameters, task.support_x, task.support_y), list(parameters.values()), create_graph=not first_order
        )
        updates, state = transformation.update(
            dict(zip(parameters, grads, strict=True)), state, params=parameters, inplace=False
        )
        parameters = torchopt.apply_updates(parameters, updates, inplace=False)
        if first_order:
            parameters = {name: p.detach().requires_grad_() for name, p in parameters.items()}
    target = parameters if first_order else start
    grads = torch.autograd.grad(loss(parameters, task.query_x, task.query_y), list(target.values()))
    names = [f"encoder.{n}" for n, _ in encoder.named_parameters()] + [f"head.{n}" for n, _ in head.named_parameters()]
    return dict(zip(names, grads, strict=True))


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("norm", [False, True])
def test_rows_equal_a_hand_written_loop_in_float64(inner, first_order, norm):
    # TorchOpt's RMSProp divides by the zero gradient of a bias before batch normalization: NaN also in the reference.
    encoder, head = networks(norm and inner != "rmsprop")
    learner = MAML(encoder, head, inner=INNER[inner], inner_steps=3, first_order=first_order)
    batch = tasks()
    rows = learner.rows(batch)
    for slot, task in enumerate(batch):
        expected = reference_row(copy.deepcopy(encoder), copy.deepcopy(head), task, INNER[inner], 3, first_order)
        assert set(rows.jacobian) == set(expected)
        for name, gradient in expected.items():
            torch.testing.assert_close(rows.jacobian[name][slot], gradient, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("inner", ["sgd", "momentum", "adam"])
def test_rows_equal_finite_differences_of_the_query_loss(inner):
    # Adam divides by the zero gradient of a bias before batch normalization: finite differences are inaccurate.
    encoder, head = networks(norm=inner != "adam")
    learner = MAML(encoder, head, inner=INNER[inner], inner_steps=3)
    batch = tasks(2)
    rows = learner.rows(batch)
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        direction = {
            n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in learner.named_parameters().items()
        }
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                for name, p in learner.named_parameters().items():
                    p += sign * 1e-6 * direction[name]
            losses.append(learner.rows(batch).losses)
            with torch.no_grad():
                for name, p in learner.named_parameters().items():
                    p -= sign * 1e-6 * direction[name]
        numeric = (losses[0] - losses[1]) / 2e-6
        exact = sum((rows.jacobian[name] * direction[name]).flatten(1).sum(1) for name in direction)
        torch.testing.assert_close(exact, numeric, rtol=1e-5, atol=1e-8)


def test_rows_equal_those_of_higher():
    encoder, head = networks()
    batch = tasks()
    rows = MAML(encoder, head, inner=torchopt.sgd(lr=0.1), inner_steps=4).rows(batch)
    model = nn.Sequential(encoder, head)
    for slot, task in enumerate(batch):
        with higher.innerloop_ctx(model, torch.optim.SGD(model.parameters(), lr=0.1), copy_initial_weights=False) as (
            f,
            opt,
        ):
            for _ in range(4):
                opt.step(nn.functional.cross_entropy(f(task.support_x), task.support_y))
            loss = nn.functional.cross_entropy(f(task.query_x), task.query_y)
            grads = torch.autograd.grad(loss, list(model.parameters()))
        for ours, theirs in zip(rows.jacobian.values(), grads, strict=True):
            torch.testing.assert_close(ours[slot], theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("first_order", [False, True])
def test_on_a_quadratic_the_row_is_the_closed_form(first_order):
    # L_S = ½ w·A w,  L_Q = ½ w·B w: row = (I − αA)^K B (I − αA)^K w, without the first factor if first order.
    generator = torch.Generator().manual_seed(0)
    a, b = (m @ m.T for m in torch.randn(2, 4, 4, generator=generator, dtype=torch.float64))
    alpha, steps = 0.05, 3

    encoder = Point(4, generator)
    # The input is the matrix; targets are float, so that the task is a regression; the loss is the output itself.
    learner = MAML(
        encoder,
        nn.Identity(),
        inner_lr=alpha,
        inner_steps=steps,
        first_order=first_order,
        loss=lambda out, y: out.sum(),
    )
    task = Task(a, torch.zeros(1, 1), b, torch.zeros(1, 1))
    row = learner.rows(TaskBatch.stack([task])).jacobian["encoder.w"][0]
    shrink = torch.linalg.matrix_power(torch.eye(4, dtype=torch.float64) - alpha * a, steps)
    expected = b @ shrink @ encoder.w
    torch.testing.assert_close(row, (expected if first_order else shrink @ expected).detach(), rtol=1e-11, atol=1e-12)


def test_feature_grads_are_the_gradients_of_each_loss_with_respect_to_the_query_features():
    encoder, head = networks()
    batch = tasks()
    learner = MAML(encoder, head, inner_steps=0)
    rows = learner.rows(batch)
    for slot, task in enumerate(batch):
        features = encoder(task.query_x).detach().requires_grad_()
        loss = nn.functional.cross_entropy(head(features), task.query_y)
        torch.testing.assert_close(rows.feature_grads[0][slot], torch.autograd.grad(loss, features)[0])
        torch.testing.assert_close(rows.features[0][slot], features.detach())


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
@pytest.mark.parametrize("inner", ["sgd", "dampening", "adam"])
def test_a_tasks_row_does_not_depend_on_the_other_tasks_of_the_batch(norm, inner):
    batch = tasks()
    together = MAML(*networks(norm=True), inner=INNER[inner], norm=norm, engine="loop").rows(batch)
    for slot, task in enumerate(batch):
        alone = MAML(*networks(norm=True), inner=INNER[inner], norm=norm, engine="loop").rows(TaskBatch.stack([task]))
        for name, value in alone.jacobian.items():
            assert torch.equal(value[0], together.jacobian[name][slot])
