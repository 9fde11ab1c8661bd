"""Batches as a function of seed and index, and R²."""

import math

import numpy as np
import pytest
import torch

from gradhomog.experiments.training.multi_task import batch_indices, r_squared


@pytest.mark.parametrize(("examples", "size"), [(60, 16), (64, 16), (7, 2)])
def test_an_epoch_has_every_example_at_most_once_in_full_batches(examples, size):
    batches = examples // size
    for epoch in range(3):
        seen = torch.cat([batch_indices(examples, size, 3, epoch * batches + index) for index in range(batches)])
        assert len(set(seen.tolist())) == len(seen) == batches * size


def test_batches_depend_on_the_epoch_and_the_seed_only():
    assert torch.equal(batch_indices(60, 16, 0, 5), batch_indices(60, 16, 0, 5))
    assert not torch.equal(batch_indices(60, 16, 0, 0), batch_indices(60, 16, 0, 3))
    assert not torch.equal(batch_indices(60, 16, 0, 0), batch_indices(60, 16, 1, 0))


def test_a_batch_larger_than_the_data_contains_all_examples():
    assert batch_indices(5, 8, 0, 11).tolist() == [0, 1, 2, 3, 4]


def test_r_squared_is_one_minus_unexplained_over_total_variance():
    random = np.random.default_rng(0)
    y, f = random.normal(size=(40, 1)), random.normal(size=(40, 1))
    expected = 1 - ((y - f) ** 2).mean() / y.var()
    assert r_squared(torch.from_numpy(f), torch.from_numpy(y)) == pytest.approx(expected, rel=1e-12)


def test_r_squared_of_the_targets_is_one_of_their_mean_zero_and_of_equal_targets_nan():
    y = torch.tensor([[1.0], [2.0], [6.0]])
    assert r_squared(y, y) == 1
    assert r_squared(torch.full_like(y, 3.0), y) == pytest.approx(0, abs=1e-12)
    assert math.isnan(r_squared(y, torch.ones(3, 1)))
