"""Steps and evaluations of MAML do not change networks, also if they fail."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gradhomog import NonfiniteError
from gradhomog_adapters.maml import MAML
from tests.adapters.few_shot import networks, tasks


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
def test_steps_and_evaluations_restore_buffers_modes_hooks_and_forwards(norm):
    encoder, head = networks(norm=True)
    encoder.eval()
    encoder[1].train()
    learner = MAML(encoder, head, inner_lr=0.1, norm=norm)
    buffers = copy.deepcopy(dict(encoder.named_buffers()))
    modes = [m.training for m in encoder.modules()]
    batch = tasks()
    learner.step(batch, torch.optim.SGD(learner.parameters(), lr=0.1))
    learner.evaluate(batch)
    learner.predict(batch[0].support_x, batch[0].support_y, batch[0].query_x)
    assert all(torch.equal(b, buffers[name]) for name, b in encoder.named_buffers())
    assert [m.training for m in encoder.modules()] == modes
    assert "forward" not in encoder[1].__dict__


class Bomb(nn.Module):
    """Raises in its n-th call."""

    def __init__(self, calls):
        super().__init__()
        self.left = calls

    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("boom")
        return x


@pytest.mark.parametrize("calls", [1, 3, 7])
def test_a_failing_inner_loop_changes_nothing(calls):
    encoder, head = networks(norm=True)
    encoder.append(Bomb(calls))
    learner = MAML(encoder, head, "gradnorm", norm="support", inner_steps=4, engine="loop")
    outer = torch.optim.Adam(learner.parameters(), lr=0.1)
    before = copy.deepcopy((learner.state_dict(), outer.state_dict()))
    with pytest.raises(RuntimeError, match="boom"):
        learner.step(tasks(), outer)
    after = (learner.state_dict(), outer.state_dict())
    assert str(after) == str(before)
    assert all(p.grad is None and p.is_leaf for p in learner.parameters())
    assert "forward" not in encoder[1].__dict__


def test_a_diverging_inner_loop_is_reported_and_changes_nothing():
    encoder, head = networks()
    learner = MAML(encoder, head, inner_lr=1e307, inner_steps=3)
    before = copy.deepcopy(learner.state_dict())
    with pytest.raises(NonfiniteError, match=r"task 1 of domain domain 1.*Lower the learning rate"):
        learner.step(tasks(), torch.optim.SGD(learner.parameters(), lr=0.1))
    assert str(learner.state_dict()) == str(before)
