"""Running statistics per inner step: averages, failed tasks, required layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gradhomog import NonfiniteError, OptionError, TaskBatch, pipeline
from gradhomog_adapters.mamlpp import MAMLPP
from tests.adapters.few_shot import networks, tasks


def test_running_statistics_average_the_inputs_of_each_step():
    learner = MAMLPP(*networks(True), inner_lr=0.1, inner_steps=1, norm="running", engine="loop")
    seen = []
    learner.encoder[1].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0].detach()))
    learner.step(tasks(2), torch.optim.SGD(learner.parameters(), lr=0.0))
    # Recorded first: a support pass and a query pass for each task.
    mean, var = (torch.stack([start] * 2) for start in (torch.zeros(6).double(), torch.ones(6).double()))
    for index, x in enumerate(seen[:4]):
        mean[index % 2] = 0.9 * mean[index % 2] + 0.1 * x.mean(0)
        var[index % 2] = 0.9 * var[index % 2] + 0.1 * x.var(0)
    found = dict(learner.extra_modules["statistics"].named_buffers())
    torch.testing.assert_close(found["encoder.1.running_mean"], mean)
    torch.testing.assert_close(found["encoder.1.running_var"], var)
    assert found["encoder.1.num_batches_tracked"].tolist() == [2, 2]
    assert learner.encoder[1].num_batches_tracked == 0
    assert torch.equal(learner.encoder[1].running_mean, torch.zeros(6).double())


def test_with_running_statistics_queries_are_independent():
    task, inductive = tasks(1)[0], {}
    for norm in ("batch", "running"):
        learner = MAMLPP(*networks(True), inner_lr=0.1, norm=norm)
        learner.step(tasks(), torch.optim.SGD(learner.parameters(), lr=0.1))
        whole = learner.predict(task.support_x, task.support_y, task.query_x)
        parts = [learner.predict(task.support_x, task.support_y, x) for x in task.query_x.split(3)]
        inductive[norm] = torch.allclose(whole, torch.cat(parts))
    assert inductive == {"batch": False, "running": True}


def test_statistics_of_failed_and_dropped_tasks_are_not_recorded():
    batch = tasks()
    broken = TaskBatch(batch.support_x, batch.support_y, batch.query_x.clone(), batch.query_y, batch.domains)
    broken.query_x[1] = torch.nan
    learner = MAMLPP(*networks(True), norm="running")
    before = copy.deepcopy(learner.state_dict())
    with pytest.raises(NonfiniteError):
        learner.step(broken, torch.optim.SGD(learner.parameters(), lr=0.1))
    assert str(learner.state_dict()) == str(before)
    learner = MAMLPP(*networks(True), pipeline("none", nonfinite="drop"), norm="running")
    learner.step(broken, torch.optim.SGD(learner.parameters(), lr=0.1))
    found = dict(learner.extra_modules["statistics"].named_buffers())
    assert bool(torch.isfinite(found["encoder.1.running_mean"]).all())
    assert found["encoder.1.num_batches_tracked"].tolist() == [2] * 6


def test_running_statistics_require_layers_that_track_them():
    encoder = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False).double())
    with pytest.raises(
        OptionError, match=r"'running' needs layers with running statistics; `encoder.0`, a BatchNorm1d"
    ):
        MAMLPP(encoder, nn.Linear(3, 3).double(), norm="running")
