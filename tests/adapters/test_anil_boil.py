"""ANIL and BOIL: adapted parameters, and rows against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import TaskBatch
from tests.adapters.few_shot import networks, tasks


def outputs_after_and_before(learner, task):
    """Outputs for the query set after and before the inner loop."""
    with torch.no_grad():
        bare = learner.head(learner.encoder(task.query_x))
    return learner.predict(task.support_x, task.support_y, task.query_x), bare


@pytest.mark.parametrize("first_order", [False, True])
def test_anil_is_maml_that_adapts_the_head_alone(first_order):
    options = {"inner_lr": 0.1, "inner_steps": 4, "first_order": first_order, "engine": "loop"}
    anil = gradhomog.learner("anil", *networks(True), **options).rows(tasks()).jacobian
    maml = gradhomog.learner("maml", *networks(True), adapt="head.*", **options).rows(tasks()).jacobian
    for name, rows in maml.items():
        torch.testing.assert_close(anil[name], rows, rtol=1e-10, atol=1e-13)


def test_anil_on_a_linear_head_has_the_closed_form():
    # One parameter w in the head, features z: squared loss, K steps: w_K = (1 − 2α m)^K w + …, m the mean of z².
    encoder, head = nn.Identity(), nn.Linear(1, 1, bias=False).double()
    generator = torch.Generator().manual_seed(0)
    x, qx = torch.randn(1, 6, 1, generator=generator).double(), torch.randn(1, 9, 1, generator=generator).double()
    batch = TaskBatch(x, 2 * x, qx, 3 * qx)
    rate, steps = 0.1, 4
    shrink = (1 - 2 * rate * x.square().mean()) ** steps
    end = 2 + shrink * (head.weight.detach() - 2)
    expected = shrink * 2 * (end - 3) * qx.square().mean()
    rows = gradhomog.learner("anil", encoder, head, inner_lr=rate, inner_steps=steps).rows(batch)
    torch.testing.assert_close(rows.jacobian["head.weight"][0], expected, rtol=1e-12, atol=0)


class CallCounter(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x


@pytest.mark.parametrize(("name", "calls"), [("anil", 2), ("maml", 8)])
def test_anil_encodes_the_support_set_once(name, calls):
    encoder, head = networks()
    learner = gradhomog.learner(name, encoder.append(CallCounter()), head, inner_steps=7, engine="loop")
    learner.rows(TaskBatch.stack([tasks()[0]]))
    assert encoder[-1].calls == calls


def test_boil_changes_features_and_anil_does_not():
    task = tasks()[0]
    for name, changes in (("anil", False), ("boil", True)):
        encoder, head = networks()
        nn.init.zeros_(head.weight)  # a zero head makes outputs independent of the features, unless it is adapted,
        learner = gradhomog.learner(name, encoder, head, inner_lr=0.5, inner_steps=1)
        after, before = outputs_after_and_before(learner, task)
        assert torch.equal(after, before) == changes  # and stops their gradients
        assert gradhomog.learner(name, *networks()).rows(tasks()).jacobian["encoder.0.weight"].abs().max() > 0


@pytest.mark.parametrize(("name", "pattern"), [("anil", "*.bias"), ("boil", "encoder.2.*")])
def test_parameters_are_chosen_by_pattern(name, pattern):
    options = {"inner_lr": 0.3, "inner_steps": 2, "engine": "loop"}
    ours = gradhomog.learner(name, *networks(), adapt=pattern, **options).rows(tasks()).jacobian
    maml = gradhomog.learner("maml", *networks(), adapt=pattern, **options).rows(tasks()).jacobian
    assert all(torch.equal(ours[key], maml[key]) for key in maml)


def test_an_inner_loop_without_trainable_parameters_has_no_effect():
    rows = {}
    for engine in ("loop", "vmap"):
        encoder, head = networks()
        learner = gradhomog.learner("anil", encoder, head, engine=engine)
        head.requires_grad_(False)
        rows[engine] = learner.rows(tasks()).jacobian["encoder.0.weight"]
    encoder, head = networks()
    task = tasks()[0]
    loss = nn.functional.cross_entropy(head(encoder(task.query_x)), task.query_y)
    (expected,) = torch.autograd.grad(loss, [encoder[0].weight])
    torch.testing.assert_close(rows["loop"][0], expected)
    torch.testing.assert_close(rows["vmap"][0], expected)
