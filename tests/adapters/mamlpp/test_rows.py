"""Rows of MAML++ against a hand-written loop, finite differences and a closed form, under both engines."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradhomog import Task
from gradhomog_adapters.mamlpp import MAMLPP
from tests.adapters import checks
from tests.adapters.few_shot import networks, tasks
from tests.adapters.mamlpp.learners import make_learner
from tests.adapters.quadratic import Point


def step_value(learner, name, k):
    return dict(learner.extra_modules.named_parameters())[name][k]


def reference_loss_and_row(learner, task, weights, first_order=False):
    """Σ v_k L_Q and its gradients, for two linear layers, one batch normalization and a head."""
    live = {n: p for n, p in learner.named_parameters().items() if not n.startswith("learner.")}
    adapted = dict(live)

    def loss(p, k, x, y):
        x = x @ p["encoder.0.weight"].T + p["encoder.0.bias"]
        x = (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + 1e-5)
        x = torch.tanh(
            x * step_value(learner, "norm.encoder.1.weight", k) + step_value(learner, "norm.encoder.1.bias", k)
        )
        x = torch.tanh(x @ p["encoder.3.weight"].T + p["encoder.3.bias"])
        return nn.functional.cross_entropy(x @ p["head.weight"].T + p["head.bias"], y)

    total = torch.zeros((), dtype=torch.float64)
    for k, weight in enumerate(weights):
        gradients = torch.autograd.grad(
            loss(adapted, k, task.support_x, task.support_y), list(adapted.values()), create_graph=True
        )
        adapted = {
            name: p - step_value(learner, f"rates.{name}", k) * (g.detach() if first_order else g)
            for (name, p), g in zip(adapted.items(), gradients, strict=True)
        }
        total = total + weight * loss(adapted, k, task.query_x, task.query_y)
    names = learner.named_parameters()
    return total, dict(zip(names, torch.autograd.grad(total, list(names.values()), allow_unused=True), strict=True))


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("until", "done", "weights"), [(10, 0, [1 / 3] * 3), (10, 4, [0.2, 0.2, 0.6]), (10, 10, [0.0, 0.0, 1.0])]
)
def test_rows_equal_a_hand_written_loop_in_float64(first_order, engine, until, done, weights):
    learner = make_learner(multi_step_steps=until, first_order_steps=1000 * first_order, engine=engine)
    for _ in range(done):
        learner.on_step_end()
    batch = tasks()
    rows = learner.rows(batch)
    for slot, task in enumerate(batch):
        loss, expected = reference_loss_and_row(learner, task, weights, first_order)
        torch.testing.assert_close(rows.losses[slot], loss.detach(), rtol=1e-11, atol=0)
        for name, gradient in expected.items():
            expected_row = torch.zeros_like(rows.jacobian[name][slot]) if gradient is None else gradient
            torch.testing.assert_close(rows.jacobian[name][slot], expected_row, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("norm", ["batch", "support", "frozen", "running"])
@pytest.mark.parametrize("options", [{}, {"multi_step_steps": 0}, {"learn_rates": False, "inner": "momentum"}])
def test_rows_equal_finite_differences_of_the_reported_losses(norm, options):
    checks.assert_rows_match_finite_differences(make_learner(norm=norm, **options), tasks(2))


@pytest.mark.parametrize("first_order", [False, True])
def test_on_a_quadratic_rows_of_rates_and_weights_are_the_closed_form(first_order):
    # L_S = ½ w·A w,  L_Q = ½ w·B w,  w' = w − α₀ A w,  w'' = w' − α₁ A w',  L = v₀ L_Q(w') + v₁ L_Q(w'').
    generator = torch.Generator().manual_seed(0)
    a, b = (m @ m.T for m in torch.randn(2, 4, 4, generator=generator, dtype=torch.float64))

    point = Point(4, generator)
    learner = MAMLPP(
        point, nn.Identity(), inner_steps=2, multi_step_steps=4, first_order_steps=9 * first_order,
        loss=lambda out, y: out.sum(),
    )  # fmt: skip
    learner.on_step_end()  # v = (3/8, 5/8)
    rates = learner.named_parameters()["learner.rates.encoder.w"]
    rates.data.copy_(torch.tensor([0.05, 0.02]))
    rows = learner.rows([Task(a, torch.zeros(1, 1), b, torch.zeros(1, 1))]).jacobian
    w0, one = point.w.detach(), torch.eye(4, dtype=torch.float64)
    shrink = [one - float(rate) * a for rate in rates.detach()]
    w1 = shrink[0] @ w0
    w2 = shrink[1] @ w1
    through = [one, one] if first_order else shrink
    arriving = 3 / 8 * b @ w1 + through[1] @ (5 / 8 * b @ w2)  # by w'
    torch.testing.assert_close(rows["encoder.w"][0], through[0] @ arriving, rtol=1e-11, atol=1e-12)
    expected = torch.stack([-(a @ w0) @ arriving, -(a @ w1) @ (5 / 8 * b @ w2)])
    torch.testing.assert_close(rows["learner.rates.encoder.w"][0], expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("norm", ["batch", "support", "frozen", "running"])
@pytest.mark.parametrize("inner", ["sgd", "adam"])
@pytest.mark.parametrize("options", [{}, {"multi_step_steps": 0}, {"first_order_steps": 9}, {"step_norm": False}])
def test_both_engines_give_the_same_rows(norm, inner, options):
    batch, found = tasks(), []
    for engine in ("loop", "vmap"):
        learner = MAMLPP(
            *networks(True), inner=inner, inner_lr=0.05, inner_steps=2, norm=norm, engine=engine, **options
        )
        found.append(learner.rows(batch))
    for name, rows in found[0].jacobian.items():
        torch.testing.assert_close(found[1].jacobian[name], rows, rtol=1e-7, atol=1e-9, msg=name)
    torch.testing.assert_close(found[1].losses, found[0].losses, rtol=1e-9, atol=0)
    torch.testing.assert_close(found[1].feature_grads[0], found[0].feature_grads[0], rtol=1e-9, atol=1e-12)
