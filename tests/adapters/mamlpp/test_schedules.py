"""Schedules of MAML++: annealing of the outer rate, and resumed runs."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torchopt
from torch import nn

from gradhomog import NonfiniteError, OptionError
from gradhomog_adapters.mamlpp import MAMLPP, cosine
from tests.adapters.few_shot import networks, tasks


def test_the_outer_rate_is_that_of_torchs_cosine_schedule():
    learner, batch = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4, final_outer_lr=0.01), tasks()
    groups = [{"params": learner.parameters()[:2]}, {"params": learner.parameters()[2:], "lr": 0.5}]
    outer = torch.optim.SGD(groups, lr=0.1)
    oracle = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.5)])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(oracle, T_max=4, eta_min=0.01)
    for _ in range(5):
        learner.step(batch, outer)
        assert [g["lr"] for g in outer.param_groups] == pytest.approx([g["lr"] for g in oracle.param_groups])
        oracle.step()
        schedule.step()
    learner.step(batch, outer)
    assert outer.param_groups[1]["lr"] == pytest.approx(0.01)
    assert outer.param_groups[1]["initial_lr"] == 0.5


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_a_failed_step_restores_the_rate(rate):
    learner, batch = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4), tasks()
    outer = torch.optim.SGD(learner.parameters(), lr=rate)
    for expected in ({"lr"}, {"lr", "initial_lr"}):
        before = copy.deepcopy(outer.state_dict())
        batch.query_x[0] = torch.nan
        with pytest.raises(NonfiniteError):
            learner.step(batch, outer)
        assert outer.state_dict() == before
        assert expected <= set(outer.param_groups[0])
        batch = tasks()
        learner.step(batch, outer)


def test_other_optimizers_raise_and_anneal_with_the_cosine_schedule():
    learner = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4)
    with pytest.raises(OptionError, match=r"got a torchopt\.\S*Adam, whose rate cannot be set.*mamlpp\.cosine"):
        learner.step(tasks(), torchopt.Adam(learner.parameters(), lr=0.1))
    with pytest.raises(OptionError, match=r"`final_outer_lr` must not exceed the outer optimizer's rate, 1e-06"):
        learner.step(tasks(), torch.optim.SGD(learner.parameters(), lr=1e-6))
    ours, theirs = (MAMLPP(*networks(True), inner_steps=1, anneal_steps=steps) for steps in (3, 0))
    one = torch.optim.SGD(ours.parameters(), lr=0.1)
    two = torchopt.SGD(theirs.parameters(), lr=cosine(0.1, 1e-5, 3))
    for seed in range(4):
        ours.step(tasks(seed=seed), one)
        theirs.step(tasks(seed=seed), two)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-9)


SCHEDULED = {"multi_step_steps": 5, "first_order_steps": 4, "anneal_steps": 6, "norm": "running", "inner_steps": 2}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["saved", "pickled", "copied"])
def test_a_run_continues_bit_for_bit_in_the_middle_of_all_schedules(how, tmp_path):
    def make():
        learner = MAMLPP(*networks(True), "gradnorm", inner_lr=0.1, **SCHEDULED)
        return learner, torch.optim.Adam(learner.parameters(), lr=0.01)

    def go_on(learner, outer):
        losses = [learner.step(tasks(seed=seed), outer).losses for seed in range(3, 8)]
        return torch.stack(losses), outer.param_groups[0]["lr"], learner.evaluate(tasks())

    learner, outer = make()
    for seed in range(3):
        learner.step(tasks(seed=seed), outer)
    if how == "saved":
        torch.save([learner.state_dict(), outer.state_dict()], tmp_path / "state.pt")
        second = make()
        for one, state in zip(second, torch.load(tmp_path / "state.pt", weights_only=True), strict=True):
            one.load_state_dict(state)
    else:
        second = pickle.loads(pickle.dumps((learner, outer))) if how == "pickled" else copy.deepcopy((learner, outer))
    expected, found = go_on(learner, outer), go_on(*second)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]
