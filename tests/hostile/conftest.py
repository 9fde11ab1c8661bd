"""The fixture `fail`: a step of a learner with the faulty homogenizer `bad` in its pipeline."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import Learner, PluginRunError, TaskBatch
from tests.hostile.plugins import install

Fail = Callable[..., str]


class Setting:
    """Two regression tasks for a small network after one step, so that its optimizer has a state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.encoder, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        self.batch = TaskBatch(
            torch.randn(2, 5, 3), torch.randn(2, 5, 1), torch.randn(2, 5, 3), torch.randn(2, 5, 1), ("a", "b")
        )
        self.outer = torch.optim.Adam([*self.encoder.parameters(), *self.head.parameters()], lr=0.1)
        self.learner("none").step(self.batch, self.outer)

    def learner(self, text: str) -> Learner:
        return gradhomog.learner("maml", self.encoder, self.head, homogenizers=text, inner_steps=1)

    def state(self) -> str:
        """Return the state that a step changes, as text: parameters, their gradients, and the optimizer's state."""
        parameters = [*self.encoder.parameters(), *self.head.parameters()]
        return repr([parameters, [p.grad for p in parameters], self.outer.state_dict()])


@pytest.fixture
def fail(gradhomog_install) -> Fail:
    """Install `bad` with these methods, take a step of a learner with it, and return the error message.

    Assert that network, gradients, hooks, optimizer and the state of every homogenizer are unchanged.
    """

    def fail(
        methods: str, spec: str = "needs=gradhomog.registry.specs.STATISTICS", text: str = "gradnorm + bad"
    ) -> str:
        install(gradhomog_install, methods, spec)
        setting = Setting()
        learner = setting.learner(text)
        before, states = setting.state(), copy.deepcopy(learner.homogenizers.state_dict())
        with pytest.raises(PluginRunError) as raised:
            learner.step(setting.batch, setting.outer)
        assert setting.state() == before
        assert not any(module._forward_hooks for module in setting.encoder.modules())
        assert repr(learner.homogenizers.state_dict()) == repr(states)
        return str(raised.value)

    return fail
