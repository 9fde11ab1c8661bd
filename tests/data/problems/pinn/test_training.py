"""Training of physics-informed networks: a hand-written loop, points and the tested state."""

import copy
import math
import sys

import numpy as np
import pytest
import torch

from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.results.runs import Run
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.training.dry_run import dry_run
from gradhomog.experiments.training.trainer import learning_rate, make_optimizer, make_trainable
from gradhomog_data.problems.pinn.equation import LowestLoss
from tests.experiments.run_helpers import trainer

NAMES = ("helmholtz", "burgers", "klein_gordon")
TINY = [
    "network.width=6", "problem.depth=2", "problem.interior=20", "problem.boundary=4", "train.steps=6",
    "train.validate_every=2", "train.checkpoint_every=3", "train.log_every=1", "train.lr_decay_every=2",
]  # fmt: skip


def config(name, *overrides):
    return load(None, [f"problem.name={name}", *TINY, *overrides])


def trainable(name, *overrides, homogenizers="none", seed=0):
    return make_trainable(config(name, *overrides), Run(name, homogenizers, seed))


@pytest.mark.parametrize("name", NAMES)
def test_points_are_a_function_of_seed_and_step(name):
    one, other, seeded = (trainable(name, seed=seed) for seed in (0, 0, 1))
    optimizer = make_optimizer(config(name), one)
    for index in range(3):
        one.step(index, optimizer, inspect=False)
    for index in (0, 7):
        for key, values in one.points(index).items():
            assert torch.equal(values, other.points(index)[key])
            assert values.dtype == torch.float32
            assert not torch.equal(values, one.points(index + 1)[key])
            assert not torch.equal(values, seeded.points(index)[key])


def test_all_methods_start_from_the_same_network_and_other_seeds_from_another():
    networks = [
        trainable("burgers", homogenizers=text, seed=seed).network.state_dict()
        for text, seed in (("none", 0), ("upgrad", 0), ("none", 1))
    ]
    for key, value in networks[0].items():
        assert torch.equal(value, networks[1][key])
    assert not torch.equal(networks[0]["layers.0.weight"], networks[2]["layers.0.weight"])
    assert networks[0]["layers.1.bias"].tolist() == [0] * 6


def test_initial_weights_have_the_standard_deviation_of_glorot_and_bengio():
    network = trainable("helmholtz", "network.width=300").network
    assert float(network.layers[0].weight.detach().std()) == pytest.approx(math.sqrt(2 / 302), rel=0.1)
    assert float(network.layers[1].weight.detach().std()) == pytest.approx(math.sqrt(2 / 600), rel=0.02)


def test_the_plain_network_is_trained_by_adam_on_the_mean_of_both_losses_with_decaying_rate(tmp_path):
    """The textbook loop with nested differentiation."""
    settings = config("burgers", "problem.state=last")
    records = []
    training = trainer(settings, Run("burgers", "none", 0), tmp_path, records)
    start = copy.deepcopy(training.trainable.network)
    training.train_and_test()

    net = torch.nn.Sequential(*[part for layer in start.layers for part in (layer, torch.nn.Tanh())][:-1])
    adam = torch.optim.Adam(net.parameters(), lr=0.001)
    schedule = torch.optim.lr_scheduler.StepLR(adam, step_size=2, gamma=0.9)
    losses = []
    for index in range(6):
        points = training.trainable.points(index)
        inside = points["pde"].requires_grad_()
        u = net(inside)
        (slope,) = torch.autograd.grad(u.sum(), inside, create_graph=True)
        (second,) = torch.autograd.grad(slope[:, 0].sum(), inside, create_graph=True)
        residual = slope[:, 1] + u[:, 0] * slope[:, 0] - 0.01 / math.pi * second[:, 0]
        initial = net(points["initial"])[:, 0] + torch.sin(math.pi * points["initial"][:, 0])
        pde = residual.square().mean()
        conditions = initial.square().mean() + net(points["boundary"]).square().mean()
        losses.append([float(pde.detach()), float(conditions.detach())])
        adam.zero_grad()
        ((pde + conditions) / 2).backward()
        adam.step()
        schedule.step()
    recorded = [record["losses"] for record in records if record["event"] == "step"]
    np.testing.assert_allclose(recorded, losses, rtol=1e-3)
    for one, other in zip(training.trainable.network.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_the_score_is_the_relative_error_on_the_test_grid():
    one = trainable("helmholtz", "problem.state=last")
    axis = np.linspace(-1, 1, 100)
    x, y = np.meshgrid(axis, axis)
    expected = np.sin(np.pi * x) * np.sin(4 * np.pi * y)
    with torch.no_grad():
        points = torch.tensor(np.stack([x.ravel(), y.ravel()], axis=1), dtype=torch.float32)
        actual = one.network(points)[0].double().numpy().reshape(100, 100)
    result = one.test([])
    relative = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert result.scores == [pytest.approx(relative, rel=1e-5)]
    assert result.metric == "relative_l2"
    assert result.domains == ["u"]
    squared = trainable("helmholtz", "problem.state=last", "problem.error=mse").test([])
    assert squared.scores == [pytest.approx(np.mean((actual - expected) ** 2), rel=1e-5)]
    assert squared.metric == "mse"


def test_validation_points_are_not_test_points():
    one = trainable("klein_gordon")
    assert one.validate().scores != one.test([]).scores


@pytest.mark.parametrize(("name", "tasks"), [("helmholtz", 2), ("burgers", 3), ("klein_gordon", 3)])
def test_conditions_are_one_task_or_one_task_each(name, tasks):
    merged, separate = trainable(name), trainable(name, "problem.conditions=separate")
    assert merged.tasks == ("pde", "conditions")
    assert len(separate.tasks) == tasks
    reports = [one.step(0, make_optimizer(config(name), one), inspect=True) for one in (merged, separate)]
    assert float(reports[0].losses.sum()) == pytest.approx(float(reports[1].losses.sum()), rel=1e-5)
    assert reports[1].names == separate.tasks
    assert reports[1].cosines.shape == (tasks, tasks)


@pytest.mark.parametrize("name", NAMES)
def test_default_methods_have_static_weights_for_all_tasks(name):
    for conditions in ("merged", "separate"):
        settings = config(name, f"problem.conditions={conditions}")
        dry_run(settings, make_methods(settings))


def test_the_state_with_the_lowest_loss_is_that_before_the_step_of_its_loss():
    network = torch.nn.Linear(2, 1)
    lowest = LowestLoss(network, ["a", "b"])
    states = []
    for losses in ({"a": 3.0}, {"b": 1.0}, {"a": 2.0, "b": 1.5}, {"a": 2.5, "b": 1.5}, {"a": 0.4}):
        states.append(copy.deepcopy(network.state_dict()))
        lowest.update(losses, len(states) - 1)
        with torch.no_grad():
            network.weight += 1
        expected = {1: 1, 2: 2, 3: 2, 4: 4}.get(len(states) - 1, 0)  # 3 + 1, 2 + 1.5, 2.5 + 1.5, 0.4 + 1.5
        assert torch.equal(lowest.network.weight, states[expected]["weight"])
        assert lowest.step == (expected if len(states) > 1 else None)
    assert lowest.sum == pytest.approx(1.9)


def test_the_result_has_the_step_of_the_state_with_the_lowest_loss(tmp_path):
    records = []
    training = trainer(config("klein_gordon", "train.outer_lr=0.05"), Run("klein_gordon", "none", 0), tmp_path, records)
    training.train_and_test()
    sums = [sum(record["losses"]) for record in records if record["event"] == "step"]
    assert records[-1]["lowest_loss_step"] == sums.index(min(sums))


def test_the_tested_state_follows_the_option(tmp_path):
    scores = {}
    for state in ("lowest_loss", "last", "lowest_error"):
        settings = config("klein_gordon", f"problem.state={state}", "train.outer_lr=0.05", "train.steps=12")
        records = []
        trainer(settings, Run("klein_gordon", "none", 0), tmp_path / state, records).train_and_test()
        result = records[-1]
        validations = [record["score"] for record in records if record["event"] == "validation"]
        expected = {"lowest_loss": validations[-1], "last": validations[-1], "lowest_error": min(validations)}
        assert result["validation"] == expected[state]
        assert result["best_step"] == 12 or state == "lowest_error"
        assert ("lowest_loss_step" in result) == (state == "lowest_loss")
        scores[state] = result["scores"][0]
    assert scores["lowest_loss"] != scores["last"]


def test_the_rate_is_constant_between_reductions():
    train = config("burgers", "train.outer_lr=0.1", "train.lr_decay=0.5", "train.lr_decay_every=3").train
    assert [learning_rate(train, index) for index in (0, 2, 3, 5, 6)] == [0.1, 0.1, 0.05, 0.05, 0.025]
    usual = load().train
    assert learning_rate(usual, 10**6) == usual.outer_lr


@pytest.mark.parametrize("outer", ["adam", "soap"])
def test_beta1_is_that_of_the_outer_optimizer(outer):
    one, second = trainable("burgers"), {"adam": 0.999, "soap": 0.95}[outer]
    settings = config("burgers", "train.beta1=0", f"train.outer={outer}")
    assert make_optimizer(settings, one).param_groups[0]["betas"] == (0.0, second)


def test_soap_trains_and_continues_from_a_checkpoint_bit_for_bit(tmp_path):
    settings = config("klein_gordon", "train.outer=soap", "train.outer_lr=0.01", "train.steps=30")
    run, records = Run("klein_gordon", "static(weights=[1, 10])", 0), []
    whole = trainer(settings, run, tmp_path / "whole", records)
    before = {name: value.clone() for name, value in whole.trainable.network.state_dict().items()}
    assert whole.train_and_test()
    losses = [sum(record["losses"]) for record in records if record["event"] == "step"]
    assert sum(losses[-5:]) < sum(losses[:5])
    assert not trainer(settings, run, tmp_path / "parts", []).train_and_test(iter([False] * 17 + [True]).__next__)
    continued = trainer(settings, run, tmp_path / "parts", [])
    assert continued.done == 17
    continued.train_and_test()
    for name, value in whole.trainable.network.state_dict().items():
        assert torch.equal(value, continued.trainable.network.state_dict()[name])
        assert not torch.equal(value, before[name])


def test_without_its_package_soap_raises_in_the_dry_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    settings = load(None, ["problem.name=helmholtz", *TINY, "train.outer=soap"])
    with pytest.raises(ConfigError, match=r"`train.outer` 'soap' needs .* pip install 'gradhomog\[soap\]'"):
        dry_run(settings, make_methods(settings))
