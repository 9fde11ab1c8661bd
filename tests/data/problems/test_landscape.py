"""The toy landscape: its formula, its Pareto front, and paths equal to those of a hand-written loop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradhomog.experiments.results import artifacts
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.trainer import make_trainable
from gradhomog_data.problems import landscape
from tests.experiments.run_helpers import trainer

SHORT = ["problem.name=landscape", "train.steps=30", "train.validate_every=10", "train.checkpoint_every=7"]


def by_hand(x, y):
    """Both losses in scalar arithmetic, as in the authors' code."""
    log_1 = math.log(max(abs(0.5 * (-x - 7) - math.tanh(-y)), 0.000005)) + 6
    log_2 = math.log(max(abs(0.5 * (-x + 3) - math.tanh(y) + 2), 0.000005)) + 6
    bowl_1 = ((-x + 7) ** 2 + 0.1 * (-y - 8) ** 2) / 10 - 20
    bowl_2 = ((-x - 7) ** 2 + 0.1 * (-y - 8) ** 2) / 10 - 20
    above, below = max(math.tanh(0.5 * y), 0), max(math.tanh(-0.5 * y), 0)
    return above * log_1 + below * bowl_1, above * log_2 + below * bowl_2


@given(st.floats(-11, 11), st.floats(-11, 11))
def test_the_losses_are_those_of_the_authors_code(x, y):
    losses = landscape.toy_losses(torch.tensor([x, y], dtype=torch.float64))
    assert losses.tolist() == pytest.approx(by_hand(x, y), rel=1e-12, abs=1e-12)


def test_no_point_dominates_a_point_of_the_front():
    front = landscape.toy_losses(landscape.pareto_front(201)).numpy()
    random = np.random.default_rng(0)
    points = np.concatenate([random.uniform(-11, 11, (20000, 2)), random.uniform([-8, -10], [8, -7], (20000, 2))])
    others = landscape.toy_losses(torch.from_numpy(points)).numpy()
    for losses in front:
        assert not ((others <= losses - 1e-9).all(axis=1)).any()


def test_the_middle_of_the_front_is_the_published_one_and_its_ends_are_minima_of_one_loss():
    front = landscape.pareto_front(401)
    assert front[200].tolist() == pytest.approx([0, -8.3552], abs=1e-4)
    for end, task in ((front[-1], 0), (front[0], 1)):
        point = end.clone().requires_grad_()
        landscape.toy_losses(point)[task].backward()
        assert point.grad.abs().max() < 1e-12


def test_points_of_the_front_have_distance_zero_from_it():
    front = landscape.pareto_front(101)
    assert landscape.distance_from_front(front[::10], front).max() == 0
    assert landscape.distance_from_front(torch.tensor(landscape.STARTS), front).min() > 1


def test_the_path_of_the_plain_learner_is_that_of_adam_on_the_mean_of_the_losses(tmp_path):
    config = load(None, SHORT)
    records = []
    trainer(config, Run("landscape", "none", 0), tmp_path, records).train_and_test()
    path = artifacts.read(tmp_path / artifacts.Trajectory.FILE, artifacts.Trajectory).path
    for index, start in enumerate(landscape.STARTS):
        point = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
        adam = torch.optim.Adam([point], lr=config.train.outer_lr)
        for step in range(config.train.steps):
            np.testing.assert_allclose(path[step, index], point.detach(), rtol=1e-12)
            adam.zero_grad()
            landscape.toy_losses(point).mean().backward()
            adam.step()
        np.testing.assert_allclose(path[-1, index], point.detach(), rtol=1e-12)
    result = records[-1]
    assert result["scores"] == landscape.toy_losses(torch.from_numpy(path[-1])).flatten().tolist()
    assert result["domains"] == ["a: f1", "a: f2", "b: f1", "b: f2", "c: f1", "c: f2"]
    assert result["best_step"] == 30  # the last step, not the best one
    assert result["validation"] == pytest.approx(np.mean(result["scores"]))
    assert result["additional_scores"]["from the front"] > 1


def test_a_few_hundred_points_of_a_long_run_are_kept():
    one = make_trainable(load(None, ["problem.name=landscape", "train.steps=100000"]), Run("landscape", "none", 0))
    assert one.keep_every == 200
