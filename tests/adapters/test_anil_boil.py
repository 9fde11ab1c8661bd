"""ANIL and BOIL: adapted parameters, and rows against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import TaskBatch
from tests.adapters.few_shot import networks, tasks


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


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize(
    ("name", "given", "adapted"),
    [
        ("anil", {}, "head.*"), ("anil", {"adapt": "*.bias"}, "*.bias"), ("boil", {}, "encoder.*"),
        ("boil", {"adapt": "encoder.3.*"}, "encoder.3.*"),
    ],
)  # fmt: skip
def test_they_are_maml_that_adapts_a_part_of_the_network(name, given, adapted, first_order):
    options = {"inner_lr": 0.1, "inner_steps": 4, "first_order": first_order, "engine": "loop"}
    ours = gradhomog.learner(name, *networks(True), **given, **options).rows(tasks()).jacobian
    maml = gradhomog.learner("maml", *networks(True), adapt=adapted, **options).rows(tasks()).jacobian
    torch.testing.assert_close(ours, maml, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("options", [{"engine": "loop"}, {"engine": "vmap"}, {"recompute": True}], ids=str)
def test_an_inner_loop_without_trainable_parameters_has_no_effect(options):
    encoder, head = networks()
    learner = gradhomog.learner("anil", encoder, head, **options)
    head.requires_grad_(False)
    task = tasks()[0]
    loss = nn.functional.cross_entropy(head(encoder(task.query_x)), task.query_y)
    (expected,) = torch.autograd.grad(loss, [encoder[0].weight])
    torch.testing.assert_close(learner.rows(tasks()).jacobian["encoder.0.weight"][0], expected)
