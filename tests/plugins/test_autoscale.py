"""AutoScale against means by hand; its passes, and its warm-up by task."""

import math

import numpy as np
import pytest
import torch

import gradhomog
from tests.autograd.networks import Model, inputs
from tests.plugins.rows import normal


def history(steps, sizes=(1.0, 30.0, 0.01)):
    return [
        normal(len(sizes), 8, seed=step) * torch.tensor(sizes, dtype=torch.float64)[:, None] for step in range(steps)
    ]


def weights(norms):
    inverse = 1 / np.asarray(norms)
    return torch.from_numpy(inverse / inverse.mean())


def test_weights_are_inverse_to_the_norms_of_the_warmup_and_then_fixed():
    pipe, measured = gradhomog.pipeline("autoscale(warmup=4)"), []
    for rows in history(7):
        measured = [*measured, rows.square().sum(1).numpy()][:4]
        expected = weights(np.sqrt(np.mean(measured, axis=0)))
        result = pipe.homogenize(rows)
        torch.testing.assert_close(result.weights, expected)
        torch.testing.assert_close(result.direction[""], expected @ rows / 3)


def test_factors_of_losses_have_no_effect():
    factors = torch.tensor([[4.0], [1e-9], [1e9]], dtype=torch.float64)
    plain, scaled = (gradhomog.pipeline("autoscale(warmup=2)") for _ in range(2))
    for rows in history(4):
        expected, found = plain.combine(rows), scaled.combine(factors * rows)
        torch.testing.assert_close(found / found.norm(), expected / expected.norm())


@pytest.mark.parametrize("text", ["autoscale(warmup=2)", "static(weights=[1, 2, 5]) + autoscale(warmup=2)"])
def test_a_step_after_the_warmup_takes_one_backward_pass(text):
    model, pipe, passes = Model(), gradhomog.pipeline(text), []
    model.encoder[0].weight.register_hook(lambda gradient: passes.append(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counts = []
    for step in range(4):
        passes.clear()
        optimizer.zero_grad()
        losses = model.losses(model.encoder(inputs(seed=step)))
        rows = [torch.autograd.grad(loss, list(model.encoder.parameters()), retain_graph=True) for loss in losses]
        heads = [
            torch.autograd.grad(loss, head.bias, retain_graph=True)
            for loss, head in zip(losses, model.heads, strict=True)
        ]
        passes.clear()
        report = gradhomog.backward(losses, pipe, parameters=model.encoder)
        counts.append(len(passes))
        for index, parameter in enumerate(model.encoder.parameters()):
            expected = sum(weight * row[index] for weight, row in zip(report.weights, rows, strict=True)) / 3
            torch.testing.assert_close(parameter.grad, expected)
        for head, (gradient,) in zip(model.heads, heads, strict=True):
            torch.testing.assert_close(head.bias.grad, gradient)
        optimizer.step()
    assert counts == [3, 3, 1, 1]


def test_with_a_method_that_reads_rows_every_step_takes_all_passes():
    model, pipe, passes = Model(), gradhomog.pipeline("autoscale(warmup=1) + pcgrad"), []
    model.encoder[0].weight.register_hook(lambda gradient: passes.append(1))
    for _ in range(3):
        model.backward(pipe)
    assert len(passes) == 9


def test_a_task_that_appears_later_has_a_warmup_of_its_own():
    pipe, rows = gradhomog.pipeline("autoscale(warmup=2)"), torch.diag(torch.tensor([2.0, 8.0, 1.0]).double())
    for _ in range(3):
        pipe.combine(rows[:2], domains=["a", "b"])
    found = pipe.homogenize(rows, domains=["a", "b", "c"]).weights
    torch.testing.assert_close(found, weights([2, 8, 1]))
    for factor in (100, 1000):
        found = pipe.homogenize(factor * rows, domains=["a", "b", "c"]).weights
        torch.testing.assert_close(found, weights([2, 8, math.sqrt((1 + 100**2) / 2)]))


def test_the_warmup_begins_with_the_first_row_that_is_not_zero():
    rows = torch.diag(torch.tensor([2.0, 0.0, 8.0]).double())
    pipe = gradhomog.pipeline("autoscale(warmup=2)")
    torch.testing.assert_close(pipe.homogenize(0 * rows).weights, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(pipe.homogenize(rows).weights, weights([2, 4, 8]))
    rows[1, 1] = 6.0
    torch.testing.assert_close(pipe.homogenize(rows).weights, weights([2, 6, 8]))
    rows[1, 1] = 0.0
    torch.testing.assert_close(pipe.homogenize(rows).weights, weights([2, math.sqrt(18), 8]))
