"""Meta-steps of MAML: the outer optimizer's step, reports, saved and resumed learners."""

from __future__ import annotations

import copy

import pytest
import torch
import torchopt
from torch import nn

import gradhomog
from gradhomog import OptionError
from gradhomog_adapters.maml import MAML
from tests.adapters.few_shot import networks, tasks


@pytest.mark.parametrize("name", ["maml", "fomaml"])
def test_both_are_created_by_name(name):
    learner = gradhomog.learner(name, *networks(), homogenizers="pcgrad", inner_steps=2)
    assert learner.first_order == (name == "fomaml")
    assert str(learner.homogenizers) == "pcgrad"
    assert gradhomog.learner("maml(first_order=true)", *networks()).first_order


def test_a_step_is_the_outer_optimizers_step_on_the_homogenized_direction():
    encoder, head = networks()
    twin = copy.deepcopy((encoder, head))
    batch = tasks()
    learner = MAML(encoder, head, "pcgrad", inner_lr=0.1, inner_steps=2)
    learner.step(batch, torch.optim.SGD(learner.parameters(), lr=1.0))
    rows = MAML(*twin, inner_lr=0.1, inner_steps=2).rows(batch).jacobian
    direction = gradhomog.pipeline("pcgrad").combine(rows)
    before = MAML(*twin).named_parameters()
    for name, parameter in learner.named_parameters().items():
        torch.testing.assert_close(parameter, before[name] - direction[name])


@pytest.mark.parametrize(
    ("make", "lr"),
    [(torch.optim.Adam, 0.05), (torch.optim.SGD, 1.0), (torchopt.Adam, 0.05), (torchopt.SGD, 1.0)],
)
def test_any_outer_optimizer_with_zero_grad_and_step_reduces_the_loss(make, lr):
    learner = MAML(*networks(), inner_lr=0.1, inner_steps=2)
    outer = make(learner.parameters(), lr=lr)
    batch = tasks()
    first = learner.step(batch, outer).losses.mean()
    for _ in range(15):
        last = learner.step(batch, outer).losses.mean()
    assert last < 0.9 * first


def test_an_outer_optimizer_of_other_parameters_raises():
    learner = MAML(*networks(), inner_lr=0.1)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(OptionError, match="`outer` must hold parameters of the learner; it holds none"):
        learner.step(tasks(), other)
    some = torch.optim.SGD(learner.head.parameters(), lr=0.1)  # training only some of them is allowed
    before = learner.encoder[0].weight.clone()
    learner.step(tasks(), some)
    assert torch.equal(learner.encoder[0].weight, before)


def test_the_report_contains_norms_cosines_and_weights():
    batch = tasks()
    learner = MAML(*networks(), "static(weights=[1, 2, 3])", inner_lr=0.1)
    rows = learner.rows(batch)
    report = learner.step(batch, torch.optim.SGD(learner.parameters(), lr=0.0))
    matrix = torch.cat([value.flatten(1) for value in rows.jacobian.values()], dim=1)
    torch.testing.assert_close(report.norms, matrix.norm(dim=1))
    torch.testing.assert_close(report.cosines, torch.corrcoef(torch.cat([matrix, -matrix], 1))[:3, :3])
    assert report.weights.tolist() == [0.5, 1.0, 1.5]
    assert report.names == ("domain 0", "domain 1", "domain 2")
    assert torch.equal(report.losses, rows.losses)
    assert report.record()["weights"] == [0.5, 1.0, 1.5]


@pytest.mark.parametrize("text", ["none", "pcgrad", "gradnorm"])
def test_a_saved_and_loaded_learner_continues_bit_for_bit(text, tmp_path):
    def make():
        learner = MAML(*networks(norm=True), text, inner_lr=0.1)
        return learner, torch.optim.Adam(learner.parameters(), lr=0.01)

    learner, outer = make()
    for seed in range(3):
        learner.step(tasks(seed=seed), outer)
    torch.save({"learner": learner.state_dict(), "outer": outer.state_dict()}, tmp_path / "state.pt")
    fresh, fresh_outer = make()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    fresh.load_state_dict(state["learner"])
    fresh_outer.load_state_dict(state["outer"])
    for seed in range(3, 6):
        first, second = learner.step(tasks(seed=seed), outer), fresh.step(tasks(seed=seed), fresh_outer)
        assert torch.equal(first.losses, second.losses)
    for one, two in zip(learner.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(one, two)
