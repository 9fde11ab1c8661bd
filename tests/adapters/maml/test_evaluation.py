"""Meta-test of MAML: independent of homogenizers; batches and lists; classification and regression."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradhomog import DataError, Task, TaskBatch
from gradhomog_adapters.maml import MAML
from tests.adapters.few_shot import networks, tasks


@pytest.mark.slow
def test_evaluation_does_not_depend_on_homogenizers():
    batch = tasks()
    bare = MAML(*networks(norm=True), inner_lr=0.1).evaluate(batch)
    with torch.no_grad():  # the caller's grad mode must have no effect
        other = MAML(*networks(norm=True), "pcgrad + gradnorm + mgda", inner_lr=0.1).evaluate(batch)
    assert bare == other
    assert bare.metric == "accuracy"
    assert len(bare.scores) == 3


def test_regression_is_scored_by_mean_squared_error():
    batch = tasks()
    y = batch.query_x[..., :1]
    regression = TaskBatch(batch.support_x, batch.support_x[..., :1], batch.query_x, y)
    learner = MAML(networks()[0], nn.Linear(4, 1).double(), inner_lr=0.01)
    result = learner.evaluate(regression)
    assert result.metric == "mse"
    outputs = learner.predict(regression[0].support_x, regression[0].support_y, regression[0].query_x)
    assert result.scores[0] == pytest.approx(float((outputs - y[0]).square().mean()))
    assert learner.step(regression, torch.optim.SGD(learner.parameters(), lr=0.1)).accuracies is None


def test_tasks_may_be_a_list_and_inference_mode_is_supported():
    learner = MAML(*networks(norm=True), inner_lr=0.1)
    batch = tasks()
    with torch.inference_mode():
        inside = learner.evaluate(
            [Task(t.support_x + 0, t.support_y, t.query_x + 0, t.query_y, t.domain) for t in batch]
        )
    assert inside == learner.evaluate(batch)
    assert torch.equal(learner.rows(list(batch)).losses, learner.rows(batch).losses)
    with pytest.raises(DataError, match="at least one task"):
        learner.evaluate([])
    with pytest.raises(DataError, match="at least one task"):
        learner.rows([])
