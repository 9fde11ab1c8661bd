"""The schedules of MAML++: the outer rate is annealed, and a run goes on in the middle of all of them."""

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
    made, batch = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4, final_outer_lr=0.01), tasks()
    groups = [{"params": made.parameters()[:2]}, {"params": made.parameters()[2:], "lr": 0.5}]
    outer = torch.optim.SGD(groups, lr=0.1)
    oracle = torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.5)])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(oracle, T_max=4, eta_min=0.01)
    for _ in range(5):
        made.step(batch, outer)
        assert [g["lr"] for g in outer.param_groups] == pytest.approx([g["lr"] for g in oracle.param_groups])
        oracle.step()
        schedule.step()
    made.step(batch, outer)
    assert outer.param_groups[1]["lr"] == pytest.approx(0.01)
    assert outer.param_groups[1]["initial_lr"] == 0.5


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_a_step_that_fails_leaves_the_rate_as_it_was(rate):
    made, batch = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4), tasks()
    outer = torch.optim.SGD(made.parameters(), lr=rate)
    for expected in ({"lr"}, {"lr", "initial_lr"}):
        before = copy.deepcopy(outer.state_dict())
        batch.query_x[0] = torch.nan
        with pytest.raises(NonfiniteError):
            made.step(batch, outer)
        assert outer.state_dict() == before
        assert expected <= set(outer.param_groups[0])
        batch = tasks()
        made.step(batch, outer)


def test_optimizers_whose_rate_cannot_be_set_are_told_how_to_anneal_and_do():
    made = MAMLPP(*networks(True), inner_steps=1, anneal_steps=4)
    with pytest.raises(OptionError, match=r"got a torchopt\.\S*Adam, whose rate cannot be reached.*mamlpp\.cosine"):
        made.step(tasks(), torchopt.Adam(made.parameters(), lr=0.1))
    with pytest.raises(OptionError, match=r"`final_outer_lr` must not exceed the outer optimizer's rate, 1e-06"):
        made.step(tasks(), torch.optim.SGD(made.parameters(), lr=1e-6))
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
def test_in_the_middle_of_all_schedules_a_run_goes_on_bit_for_bit(how, tmp_path):
    def make():
        made = MAMLPP(*networks(True), "gradnorm", inner_lr=0.1, **SCHEDULED)
        return made, torch.optim.Adam(made.parameters(), lr=0.01)

    def go_on(made, outer):
        losses = [made.step(tasks(seed=seed), outer).losses for seed in range(3, 8)]
        return torch.stack(losses), outer.param_groups[0]["lr"], made.evaluate(tasks())

    made, outer = make()
    for seed in range(3):
        made.step(tasks(seed=seed), outer)
    if how == "saved":
        torch.save([made.state_dict(), outer.state_dict()], tmp_path / "state.pt")
        second = make()
        for one, state in zip(second, torch.load(tmp_path / "state.pt", weights_only=True), strict=True):
            one.load_state_dict(state)
    else:
        second = pickle.loads(pickle.dumps((made, outer))) if how == "pickled" else copy.deepcopy((made, outer))
    expected, found = go_on(made, outer), go_on(*second)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]
