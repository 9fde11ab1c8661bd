"""Sharp-MAML: rows against those of MAML at the perturbed point; inner steps in closed form; tasks with NaN."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from gradhomog import TaskBatch
from gradhomog_adapters.maml import MAML
from gradhomog_adapters.sharp_maml import SharpMAML, ascent_step
from tests.adapters.few_shot import networks, tasks

OPTIONS = {"inner_lr": 0.1, "inner_steps": 2}


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_rows_are_those_of_maml_at_the_perturbed_point(engine):
    found = SharpMAML(*networks(), outer_radius=0.3, engine=engine, **OPTIONS).rows(tasks())
    maml = MAML(*networks(), **OPTIONS)
    mean = {name: rows.mean(0) for name, rows in maml.rows(tasks()).jacobian.items()}
    length = torch.cat([tensor.flatten() for tensor in mean.values()]).norm()
    with torch.no_grad():
        for name, parameter in maml.named_parameters().items():
            parameter += 0.3 * mean[name] / length
    expected = maml.rows(tasks())
    torch.testing.assert_close(found.losses, expected.losses)
    for name, rows in expected.jacobian.items():
        torch.testing.assert_close(found.jacobian[name], rows, rtol=1e-9, atol=1e-12)


def test_an_inner_step_uses_the_gradient_at_the_perturbed_point():
    # ½ a θ² at θ > 0: the gradient a θ is positive, so ε = ρ and θ' = θ − α a (θ + ρ); w.r.t. θ: (1 − α a)(θ' − t).
    head, alpha, rho = nn.Linear(1, 1, bias=False).double(), 0.3, 0.2
    nn.init.constant_(head.weight, 0.7)
    x, ones = torch.full((1, 4, 1), 1.5, dtype=torch.float64), torch.ones(1, 4, 1, dtype=torch.float64)
    learner = SharpMAML(
        nn.Identity(), head, outer_radius=0.0, inner_radius=rho, inner_lr=alpha, inner_steps=1,
        loss=lambda out, y: mse_loss(out, y) / 2,
    )  # fmt: skip
    a = 1.5**2
    row = learner.rows(TaskBatch(x, 0 * x, ones, 2 * ones)).jacobian["head.weight"][0]
    expected = (1 - alpha * a) * (0.7 - alpha * a * (0.7 + rho) - 2)
    torch.testing.assert_close(row, torch.full((1, 1), expected, dtype=torch.float64))


def test_meta_test_is_that_of_maml():
    encoder, head = networks()
    learner = SharpMAML(encoder, head, outer_radius=0.3, inner_radius=0.2, **OPTIONS)
    task = tasks()[0]
    inputs = task.support_x, task.support_y, task.query_x
    assert torch.equal(learner.predict(*inputs), MAML(encoder, head, **OPTIONS).predict(*inputs))


def test_a_gradient_of_any_size_is_scaled_to_the_radius():
    for size in (1e-40, 1.0, 1e30):
        found = ascent_step({"a": size * torch.tensor([3.0, 4.0])}, 2.0)["a"]
        torch.testing.assert_close(found, torch.tensor([1.2, 1.6]), rtol=1e-4, atol=0.0)
    assert not ascent_step({"a": torch.zeros(2)}, 2.0)["a"].any()
