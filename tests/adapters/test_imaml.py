"""iMAML: rows against closed forms, dense solutions, and finite differences at solved inner problems."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
import torchopt
from torch import nn

from gradhomog import TaskBatch
from gradhomog_adapters.imaml import IMAML
from gradhomog_adapters.reptile import Reptile
from tests.adapters import checks
from tests.adapters.checks import networks, tasks

# Enough inner and CG steps for the row to equal the derivative of the loss up to rounding, on these networks.
SOLVED = {"proximal": 5.0, "inner_lr": 0.15, "inner_steps": 150, "cg_steps": 40}


class Point(nn.Module):
    """½ w·M w for the input M: all derivatives have closed forms."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, generator=torch.Generator().manual_seed(3), dtype=torch.float64))

    def forward(self, x):
        return (self.w @ x @ self.w / 2)[None, None]


def random_positive_definite(size, seed):
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T / size


def quadratic_task(support, query):
    y = torch.zeros(1, 1, 1)
    return TaskBatch(support[None], y, query[None], y)


def make_point_learner(point, **options):
    return IMAML(point, nn.Identity(), loss=lambda out, y: out.sum(), **options)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_on_a_quadratic_the_row_is_the_closed_form(damping, engine):
    # θ* = (I + A/λ)⁻¹ θ, row = ((1 + δ)I + A/λ)⁻¹ B θ*
    a, b, strength = random_positive_definite(4, 0), random_positive_definite(4, 1), 0.7
    point, eye = Point(), torch.eye(4, dtype=torch.float64)
    learner = make_point_learner(
        point, proximal=strength, inner_lr=0.3, inner_steps=300, cg_steps=6, damping=damping, adapt="encoder.w",
        engine=engine,
    )  # fmt: skip
    row = learner.rows(quadratic_task(a, b)).jacobian["encoder.w"][0]
    solution = torch.linalg.solve(eye + a / strength, point.w.detach())
    expected = torch.linalg.solve((1 + damping) * eye + a / strength, b @ solution)
    torch.testing.assert_close(row, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "support"])
@pytest.mark.parametrize("adapt", ["*", "head.*", "encoder.*"])
def test_rows_are_derivatives_of_the_loss_at_the_solved_problem(adapt, norm):
    held = {"proximal": 40.0, "inner_lr": 0.02, "inner_steps": 60} if adapt != "head.*" else {}
    learner = IMAML(*networks(norm=True), adapt=adapt, norm=norm, **{**SOLVED, **held})
    checks.assert_rows_match_finite_differences(learner, tasks())


INNER = {
    "sgd": (lambda: torchopt.sgd(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (lambda: torchopt.sgd(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "adam": (lambda: torchopt.adam(lr=0.1, betas=(0.5, 0.5)), lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.5))),
}


@pytest.mark.parametrize("adapt", ["*", "head.*"])
@pytest.mark.parametrize("inner", INNER)
def test_every_inner_step_descends_on_the_proximal_objective(inner, adapt):
    ours, theirs = INNER[inner]
    encoder, head = networks(norm=inner != "adam")
    task = tasks()[0]
    learner = IMAML(encoder, head, inner=ours(), inner_steps=2, test_steps=4, proximal=3.0, adapt=adapt)
    found = learner.predict(task.support_x, task.support_y, task.query_x)
    encoder, head = copy.deepcopy((encoder, head))
    parameters = [*head.parameters()] if adapt == "head.*" else [*encoder.parameters(), *head.parameters()]
    starts, optimizer = [p.detach().clone() for p in parameters], theirs(parameters)
    for _ in range(4):
        optimizer.zero_grad()
        distance = sum((p - start).square().sum() for p, start in zip(parameters, starts, strict=True))
        (nn.functional.cross_entropy(head(encoder(task.support_x)), task.support_y) + 1.5 * distance).backward()
        optimizer.step()
    torch.testing.assert_close(found, head(encoder(task.query_x)).detach(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("max_norm_ratio", [1.0, 2.0])
def test_rows_of_indefinite_systems_are_bounded_and_first_order_without_positive_curvature(max_norm_ratio):
    generator, query = torch.Generator().manual_seed(0), torch.eye(4, dtype=torch.float64)
    point = Point()
    w = point.w.detach()
    options = {"proximal": 1.0, "inner_steps": 0, "adapt": "encoder.w", "max_norm_ratio": max_norm_ratio}
    for _ in range(10):
        support = torch.randn(4, 4, generator=generator, dtype=torch.float64)
        row = (
            make_point_learner(point, **options)
            .rows(quadratic_task(3 * (support + support.T), query))
            .jacobian["encoder.w"][0]
        )
        assert float(row.norm()) <= max_norm_ratio * float(w.norm()) * (1 + 1e-12)
        assert float(row @ w) > 0
    row = make_point_learner(point, **options).rows(quadratic_task(-5 * query, query)).jacobian["encoder.w"][0]
    assert torch.equal(row, w)


class LiveOutputCounter(nn.Module):
    """Counts in each call how many of its earlier outputs are still alive."""

    def __init__(self):
        super().__init__()
        self.outputs, self.most = [], 0

    def forward(self, x):
        self.most = max(self.most, sum(ref() is not None for ref in self.outputs))
        result = torch.tanh(x)
        self.outputs.append(weakref.ref(result))
        return result


@pytest.mark.parametrize("make", [IMAML, Reptile])
def test_graphs_of_inner_steps_are_freed(make):
    most = set()
    for steps in (3, 12):
        encoder, head = networks()
        encoder.append(LiveOutputCounter())
        make(encoder, head, inner_steps=steps, engine="loop").rows(tasks(1))
        assert len(encoder[-1].outputs) > steps
        most.add(encoder[-1].most)
    assert len(most) == 1
    assert max(most) <= 2


@pytest.mark.slow
def test_rows_with_a_rotation_are_derivatives_too():
    learner = IMAML(*networks(), "rotate", **SOLVED)
    learner.step(tasks(), torch.optim.SGD(learner.parameters(), lr=0.0))
    checks.assert_rows_match_finite_differences(learner, tasks())
