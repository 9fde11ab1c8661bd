"""Losses near the ends of float64, of the methods that learn a logarithm per loss with Adam."""

from __future__ import annotations

import pytest
import torch

import gradhomog
from gradhomog import OptionError
from tests.plugins.from_losses import weights

by_method = pytest.mark.parametrize("method", ["uw", "imtl_l"])


@by_method
@pytest.mark.parametrize("loss", [1e300, 1.7e308])
def test_a_loss_that_adam_cannot_square_is_refused_by_name_and_nothing_is_learnt_of_it(method, loss):
    pipe = gradhomog.pipeline(method)
    before = pipe.state_dict()
    message = rf"{method}: losses times their weights must be below 1e\+150.*; task 1 has 1"
    with pytest.raises(OptionError, match=message):
        pipe.combine(torch.eye(2), losses=[1.0, loss])
    assert pipe.state_dict() == before


@by_method
@pytest.mark.parametrize("loss", [1e-300, 5e-324])
def test_a_loss_of_next_to_nothing_is_as_one_of_zero(method, loss):
    assert torch.equal(weights(method, [loss, 1.0], steps=3), weights(method, [0.0, 1.0], steps=3))
