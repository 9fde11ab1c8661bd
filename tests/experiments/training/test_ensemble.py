"""The best states by validation: which are kept, and that the mean of their outputs is what is tested."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from gradhomog import ConfigError, DataError, OptionError, TaskBatch
from gradhomog.ensemble import Ensemble
from gradhomog.experiments.config.schema import load
from gradhomog.experiments.data.splits import streams
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.training.best_states import Best
from gradhomog.experiments.training.meta_learning import make_learner
from gradhomog_adapters.maml import MAML
from tests.experiments.conftest import SMALL
from tests.experiments.running import trainer

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
    whole, batch = learner(9), tasks()
    before = {name: p.clone() for name, p in whole.named_parameters().items()}
    ensemble = Ensemble(whole, [member.state_dict() for member in members])
    result = ensemble.evaluate(batch)
    for slot, task in enumerate(batch):
        arguments = task.support_x, task.support_y, task.query_x
        expected = sum(member.predict(*arguments) for member in members) / 3
        torch.testing.assert_close(ensemble.predict(*arguments), expected)
        assert result.scores[slot] == float((expected.argmax(1) == task.query_y).double().mean())
        assert result.losses[slot] == pytest.approx(float(nn.functional.cross_entropy(expected, task.query_y)))
    assert result.domains == ["one", "two"]
    assert all(torch.equal(p, before[name]) for name, p in whole.named_parameters().items())


def test_an_ensemble_of_one_is_the_learner_and_regression_is_scored_by_squared_error():
    alone, batch = learner(), tasks()
    assert Ensemble(alone, [alone.state_dict()]).evaluate(batch) == alone.evaluate(batch)
    numbers = TaskBatch(
        batch.support_x, batch.support_x.repeat(1, 1, 2)[..., :3], batch.query_x, batch.query_x @ torch.ones(2, 3)
    )
    assert Ensemble(alone, [alone.state_dict()]).evaluate(numbers) == alone.evaluate(numbers)


def test_what_cannot_be_an_ensemble_is_refused():
    with pytest.raises(OptionError, match="`states` must hold at least one state"):
        Ensemble(learner(), [])
    with pytest.raises(ConfigError, match="the state of MAML must hold"):
        Ensemble(learner(), [{}])
    with pytest.raises(DataError, match="at least one task"):
        Ensemble(learner(), [learner().state_dict()]).evaluate([])


def test_the_best_are_kept_in_order_and_of_equals_the_earlier():
    best = Best(3, lambda new, old: not math.isnan(new) and (math.isnan(old) or new > old))
    for step, score in enumerate([math.nan, 0.5, 0.7, 0.5, 0.6, 0.7, math.nan]):
        best.offer(score, step, {"step": step})
    assert [(kept.score, kept.step) for kept in best.kept] == [(0.7, 2), (0.7, 5), (0.6, 4)]
    again = Best(3, best.better)
    again.load_state_dict(best.state_dict())
    assert again.kept == best.kept
    assert best.first.state == {"step": 2}


@pytest.fixture
def config():
    return load(None, [*SMALL, "train.ensemble=2", "train.validate_every=3"])


@pytest.mark.parametrize("stops", [(), (4, 8)])
def test_a_run_tests_the_mean_of_its_best_states_wherever_it_was_interrupted(config, tmp_path, stops):
    records = []
    for limit in (*stops, None):
        training = trainer(config, RUN, tmp_path, records)
        training.finish(lambda t=training, n=limit: t.done == n)
    scores = {r["step"]: r["score"] for r in records if r["event"] == "validation"}
    result = records[-1]
    assert result["ensemble"] == sorted(scores, key=scores.get)[:2]
    assert result["best_step"] == result["ensemble"][0]
    assert result["validation"] == min(scores.values())
    source = streams(config, 0)
    saved = torch.load(tmp_path / "ensemble.pt", weights_only=True)["states"]
    members = []
    for kept in saved:
        member = make_learner(config, RUN, source)
        member.load_state_dict(kept["state"])
        members.append(member)
    variances = {domain.name: domain.target_variance for domain in source.test.domains}
    for index, found in enumerate(result["scores"]):
        task = source.test.task(index)
        mean = sum(m.predict(task.support_x, task.support_y, task.query_x) for m in members) / 2
        error = float((mean - task.query_y).square().mean())
        assert found == pytest.approx(error / variances[task.domain], rel=1e-5)


def test_by_default_one_state_is_tested_alone(small, tmp_path):
    records = []
    trainer(small, RUN, tmp_path, records).finish()
    assert "ensemble" not in records[-1]
    assert not (tmp_path / "ensemble.pt").exists()


def test_an_ensemble_of_none_is_refused():
    with pytest.raises(ConfigError, match=r"`train.ensemble` must be at least 1; got 0"):
        load(None, ["train.ensemble=0"])
