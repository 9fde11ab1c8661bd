"""Adam on plain numbers against PyTorch's, and whose variable moves when."""

from __future__ import annotations

import math

import pytest
import torch

from gradhomog_plugins import _adam


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_every_variable_moves_as_in_torch(weight_decay):
    generator = torch.Generator().manual_seed(0)
    theirs = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([theirs], lr=0.03, weight_decay=weight_decay)
    keys, ours = ["a", "b", "c"], {}
    for _ in range(50):
        slopes = torch.randn(3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 1e-3, 1e3])
        theirs.grad = slopes
        optimizer.step()
        ours.update(_adam.moved(ours, keys, slopes.tolist(), 0.03, weight_decay=weight_decay))
    torch.testing.assert_close(_adam.values(ours, keys), theirs.detach(), rtol=1e-10, atol=1e-12)


def test_two_tasks_of_one_key_move_it_once_by_the_sum_of_their_slopes():
    both = _adam.moved({}, ["a", "b", "a"], [0.3, -1.0, 0.1], 0.1)
    assert both["a"] == pytest.approx(_adam.step(_adam.start(), 0.4, 0.1))
    assert both["a"][3] == 1


def test_what_is_not_in_the_batch_stays_and_what_is_new_starts_where_told():
    variables = {"old": _adam.step(_adam.start(), 1.0, 0.1)}
    before = dict(variables)
    found = _adam.moved(variables, ["new"], [0.0], 0.1, otherwise=2.0)
    assert variables == before
    assert found == {"new": [2.0, 0.0, 0.0, 1.0]}
    assert _adam.values(variables, ["old", "other"], 5.0).tolist() == pytest.approx([-0.1, 5.0])


def test_no_value_leaves_the_bound():
    variables = {}
    for _ in range(100):
        variables.update(_adam.moved(variables, ["up", "down"], [-1.0, 1.0], 0.5, bound=3.0))
    assert [variables[key][0] for key in ("up", "down")] == [3.0, -3.0]
    assert all(math.isfinite(number) for state in variables.values() for number in state)
