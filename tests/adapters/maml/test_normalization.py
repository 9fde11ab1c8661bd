"""Statistics of batch normalization under `norm`; the layers keep their running statistics."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from gradhomog import OptionError
from gradhomog_adapters.maml import MAML
from tests.adapters.few_shot import assert_rows_are_derivatives, networks, tasks


def test_support_statistics_make_queries_independent_of_each_other():
    batch = tasks()
    task = batch[0]
    outputs = {}
    for norm in ("batch", "support", "frozen"):
        learner = MAML(*networks(norm=True), inner_lr=0.1, norm=norm)
        together = learner.predict(task.support_x, task.support_y, task.query_x)
        halves = [learner.predict(task.support_x, task.support_y, part) for part in task.query_x.split(3)]
        outputs[norm] = torch.allclose(together, torch.cat(halves))
    assert outputs == {"batch": False, "support": True, "frozen": True}


def test_support_statistics_are_those_of_the_adapted_support_set():
    encoder, head = networks(norm=True)
    task = tasks()[0]
    learner = MAML(encoder, head, inner_steps=0, norm="support")
    found = learner.predict(task.support_x, task.support_y, task.query_x)
    layer = copy.deepcopy(encoder)
    before = layer[0](task.support_x)
    layer[1].running_mean, layer[1].running_var = before.mean(0).detach(), before.var(0, unbiased=False).detach()
    torch.testing.assert_close(found, head(layer.eval()(task.query_x)).detach())


def test_rows_with_support_statistics_equal_finite_differences():
    learner = MAML(*networks(norm=True), inner_lr=0.1, inner_steps=2, norm="support")
    assert_rows_are_derivatives(learner, tasks(1)[0], ["encoder.0.weight"])


def test_a_learner_can_be_copied_and_pickled_after_a_step_with_support_statistics():
    learner = MAML(*networks(norm=True), "pcgrad", inner_lr=0.1, norm="support")
    batch = tasks()
    learner.step(batch, torch.optim.SGD(learner.parameters(), lr=0.1))
    for other in (copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))):
        assert other.evaluate(batch) == learner.evaluate(batch)


class Twice(nn.Module):
    """One batch normalization, used twice in a forward pass."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3).double()

    def forward(self, x):
        return self.norm(5 + 3 * self.norm(x))


def test_a_normalization_used_twice_replays_each_calls_own_statistics():
    task = tasks()[0]
    outputs = {}
    for norm in ("batch", "support"):
        torch.manual_seed(0)
        learner = MAML(Twice(), nn.Linear(3, 3).double(), inner_steps=0, norm=norm)
        outputs[norm] = learner.predict(task.support_x, task.support_y, task.support_x)
    torch.testing.assert_close(outputs["support"], outputs["batch"])


def test_a_normalization_shared_by_encoder_and_head_keeps_its_running_statistics():
    shared = nn.BatchNorm1d(3).double()
    learner = MAML(nn.Sequential(shared), nn.Sequential(shared, nn.Linear(3, 3).double()), inner_lr=0.1)
    before = shared.running_mean.clone()
    learner.rows(tasks())
    assert torch.equal(shared.running_mean, before)


def test_frozen_statistics_require_layers_that_track_them():
    encoder = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False).double())
    learner = MAML(encoder, nn.Linear(3, 3).double(), norm="frozen")
    with pytest.raises(OptionError, match=r"'frozen' needs running statistics; a BatchNorm1d"):
        learner.evaluate(tasks())
