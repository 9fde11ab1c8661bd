"""Problems that train in a second: losses, the gain of training, exact repetition and resumption, disjoint splits."""

import copy
import math

import numpy as np
import pytest
import torch

from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.score_metrics import metric
from gradhomog.experiments.training.multi_task import MultiTask
from gradhomog.experiments.training.trainer import make_optimizer, make_trainable
from gradhomog_data.problems import generated, small_digits
from tests.data.problems.conftest import needs_recbole

PLAIN_SCORES = {
    "diffusion": 1.2, "forgetting": 0.15, "policy": 0.65, "recommender": 0.85, "replay": 0.95, "shared_unit": 0.99,
    "small_digit_pairs": 0.8, "unequal_regressions": 0.65, "yeast": 0.33, "movielens": 0.62,
}  # fmt: skip
"""Scores that plain training exceeds; those of the initial networks are far worse."""

every_problem = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_recbole) if name == "movielens" else name for name in PLAIN_SCORES]
)


def made(name, text="none", seed=0, *overrides):
    config = load(None, [f"problem.name={name}", *overrides])
    trainable = make_trainable(config, Run(name, text, seed))
    return trainable, make_optimizer(config, trainable), config.train.steps


def train(trainable, optimizer, steps):
    return [trainable.step(index, optimizer, inspect=False).losses for index in steps]


def splits(trainable):
    """The inputs of training, validation and test."""
    if isinstance(trainable, MultiTask):
        return [getattr(trainable.data, name).inputs for name in ("train", "validation", "test")]
    return [parts[0] for parts in trainable.splits.values()]


@every_problem
def test_losses_are_positive_and_differentiable(name):
    trainable, _, _ = made(name)
    losses = trainable.losses(3)
    assert list(losses) == list(trainable.tasks)
    for loss in losses.values():
        grads = torch.autograd.grad(loss, trainable.parameters(), retain_graph=True, allow_unused=True)
        assert 0 < loss.item() < math.inf
        assert 0 < max(grad.norm().item() for grad in grads if grad is not None) < math.inf


def test_the_loss_of_forgetting_is_not_negative_for_nearly_uniform_outputs():
    trainable, _, _ = made("forgetting")
    before = [parameter.detach().clone() for parameter in trainable.parameters()]
    with torch.no_grad():
        for scale in (0.0, *torch.logspace(-6, -2, 30)):
            for parameter, value in zip(trainable.parameters(), before, strict=True):
                parameter.copy_(scale * value)
            assert trainable.losses(0)["forget"] >= 0


@pytest.mark.slow_after_first
@every_problem
def test_plain_training_improves_the_score(name):
    trainable, optimizer, steps = made(name)
    is_better, bound = metric(trainable.metric).is_better, PLAIN_SCORES[name]
    assert is_better(bound, trainable.test([]).mean)
    train(trainable, optimizer, range(steps))
    assert is_better(trainable.test([]).mean, bound)
    assert is_better(trainable.validate().mean, bound)


@pytest.mark.slow_after_first
@every_problem
def test_a_resumed_run_is_the_uninterrupted_run_bit_for_bit(name):
    whole, part, resumed = (made(name, "famo") for _ in range(3))
    losses = train(*whole[:2], range(20))
    train(*part[:2], range(9))
    for saved, new in zip(part[:2], resumed[:2], strict=True):
        new.load_state_dict(copy.deepcopy(saved.state_dict()))
    torch.rand(7)  # no step reads the global generator
    assert torch.equal(torch.stack(train(*resumed[:2], range(9, 20))), torch.stack(losses[9:]))
    for one, other in zip(whole[0].parameters(), resumed[0].parameters(), strict=True):
        assert torch.equal(one, other)


@every_problem
def test_seeds_of_runs_change_network_and_batches_and_seeds_of_problems_change_the_data(name):
    first, other = made(name)[0], made(name, "none", 1)[0]
    data = made(name, "none", 0, "problem.seed=1")[0]
    for one, two in zip(splits(first), splits(other), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(splits(first)[0], splits(data)[0])
    losses = [torch.stack([*trainable.losses(0).values()]) for trainable in (first, other)]
    assert not torch.equal(*losses)


@every_problem
def test_no_example_is_in_two_splits(name):
    rows = [{tuple(row) for row in inputs.flatten(1).tolist()} for inputs in splits(made(name)[0])]
    assert len(set.union(*rows)) == sum(map(len, rows))


def test_min_snr_weights_are_those_of_the_schedule():
    share = small_digits.signal_shares()
    ratio = share / (1 - share)
    weights = (ratio.clamp(max=5) / ratio).view(4, -1).mean(1).tolist()
    assert list(small_digits.MIN_SNR_WEIGHTS) == list(small_digits.TIMES)
    assert weights == pytest.approx(list(small_digits.MIN_SNR_WEIGHTS.values()), abs=5e-4)


def test_no_weighted_sum_reaches_the_balanced_point_of_a_shared_unit():
    coefficients = made("shared_unit")[0].coefficients
    largest = []
    for weights in np.random.default_rng(0).dirichlet(np.ones(3), 3000):
        # The unit that minimizes a weighted sum is the first eigenvector of the weighted sum of the b bᵀ.
        unit = np.linalg.eigh(coefficients * weights @ coefficients.T)[1][:, -1]
        largest.append((1 - np.square(coefficients.T @ unit / np.linalg.norm(coefficients, axis=0))).max())
    assert min(largest) > 0.82
    assert generated.balanced(coefficients, np.random.default_rng(0)) == pytest.approx(0.645, abs=0.01)
