"""The best states by validation: which states are kept, and that the mean of their outputs is tested."""

import math

import pytest
import torch
from torch import nn

from gradhomog import TaskBatch
from gradhomog.experiments.episodes.splits import normalize_scores, streams
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.meta_learning import make_learner
from gradhomog.experiments.training.trainer import BestStates
from gradhomog.learners.ensemble import Ensemble
from gradhomog_adapters.maml import MAML
from tests.experiments.conftest import SMALL
from tests.experiments.run_helpers import trainer

RUN = Run("maml", "gradnorm", 0)


def learner(seed=0):
    torch.manual_seed(seed)
    return MAML(nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Linear(4, 3), inner_lr=0.1, inner_steps=2)


def tasks():
    x = torch.randn(2, 9, 2, generator=torch.Generator().manual_seed(0))
    y = torch.arange(3).repeat(2, 3)
    return TaskBatch(x[:, :3], y[:, :3], x[:, 3:], y[:, 3:], ("one", "two"))


def test_the_outputs_are_the_mean_of_those_at_each_state():
    members = [learner(seed) for seed in range(3)]
    base, batch = learner(9), tasks()
    before = {name: p.clone() for name, p in base.named_parameters().items()}
    ensemble = Ensemble(base, [member.state_dict() for member in members])
    result = ensemble.evaluate(batch)
    for slot, task in enumerate(batch):
        arguments = task.support_x, task.support_y, task.query_x
        expected = sum(member.predict(*arguments) for member in members) / 3
        torch.testing.assert_close(ensemble.predict(*arguments), expected)
        assert result.scores[slot] == float((expected.argmax(1) == task.query_y).double().mean())
        assert result.losses[slot] == pytest.approx(float(nn.functional.cross_entropy(expected, task.query_y)))
    assert result.domains == ["one", "two"]
    assert all(torch.equal(p, before[name]) for name, p in base.named_parameters().items())


def test_best_states_are_sorted_and_of_equal_scores_the_earlier_is_first():
    best = BestStates(3, lambda new, old: not math.isnan(new) and (math.isnan(old) or new > old))
    for step, score in enumerate([math.nan, 0.5, 0.7, 0.5, 0.6, 0.7, math.nan]):
        best.add(score, step, {"step": step})
    assert [(saved["score"], saved["step"]) for saved in best.states] == [(0.7, 2), (0.7, 5), (0.6, 4)]
    assert best.states[0]["state"] == {"step": 2}


@pytest.fixture
def config():
    return load(None, [*SMALL, "train.ensemble=2", "train.validate_every=3"])


@pytest.mark.slow_after_first
@pytest.mark.parametrize("stops", [(), (4, 8)])
def test_a_run_tests_the_mean_of_its_best_states_after_any_interruption(config, tmp_path, stops):
    records = []
    for limit in (*stops, None):
        training = trainer(config, RUN, tmp_path, records)
        training.train_and_test(lambda t=training, n=limit: t.done == n)
    scores = {r["step"]: r["score"] for r in records if r["event"] == "validation"}
    result = records[-1]
    assert result["ensemble"] == sorted(scores, key=scores.get)[:2]
    assert result["best_step"] == result["ensemble"][0]
    assert result["validation"] == min(scores.values())
    source = streams(config, 0)
    saved = torch.load(tmp_path / "ensemble.pt", weights_only=True)["states"]
    ensemble = Ensemble(make_learner(config, RUN, source), [entry["state"] for entry in saved])
    tested = ensemble.evaluate(source.test.task(index) for index in range(config.test.episodes))
    assert normalize_scores(tested, source.test.domains).scores == result["scores"]
