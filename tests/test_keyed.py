"""State by key: the rules for keys that are new, absent or repeated, and Adam compared with PyTorch's."""

import math

import pytest
import torch

from gradhomog import keyed

FUNCTIONS = {
    "write": lambda state, keys, values: keyed.write(state, keys, values),
    "ema": lambda state, keys, values: keyed.ema(state, keys, values, decay=0.75),
    "adam": lambda state, keys, values: keyed.adam(state, keys, values, lr=0.1),
    "write_tensors": lambda state, keys, values: keyed.write_tensors(state, keys, torch.stack([values, -values], 1)),
}
each = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    return True


@each
def test_the_order_of_two_tasks_of_one_key_has_no_effect(function):
    one, other = {}, {}
    for values in ([0.1, 0.7, -3.0], [2.0, 0.3, 1.0]):
        one = function(one, ["a", "a", "b"], torch.tensor(values, dtype=torch.float64))
        other = function(other, ["a", "a", "b"], torch.tensor([values[1], values[0], values[2]], dtype=torch.float64))
    assert equal(one, other)


@each
def test_tasks_of_one_key_update_it_once_by_their_mean(function):
    twice = function({}, ["a", "b", "a"], torch.tensor([0.25, -1.0, 0.75], dtype=torch.float64))
    assert equal(twice, function({}, ["a", "b"], torch.tensor([0.5, -1.0], dtype=torch.float64)))


@each
def test_an_absent_key_keeps_its_state_and_the_old_state_is_not_modified(function):
    first = function({}, ["a", "b"], torch.tensor([1.0, 2.0], dtype=torch.float64))
    before = {key: value.clone() if torch.is_tensor(value) else value for key, value in first.items()}
    second = function(first, ["b", "c"], torch.tensor([5.0, 6.0], dtype=torch.float64))
    assert equal(first, before)
    assert equal(second["a"], first["a"])
    assert sorted(second) == ["a", "b", "c"]


def test_a_new_key_reads_the_initial_value():
    assert keyed.read({"old": 3.0}, ["new", "old", "new"], 5.0).tolist() == [5, 3, 5]
    assert keyed.values({"old": [3.0, 0.0, 0.0, 1.0]}, ["new", "old"], 5.0).tolist() == [5, 3]
    tensors = keyed.read_tensors({"old": torch.ones(2)}, ["new", "old"], torch.zeros(2))
    assert tensors.tolist() == [[0, 0], [1, 1]]
    assert keyed.adam({}, ["new"], [0.0], 0.1, initial=2.0) == {"new": [2.0, 0.0, 0.0, 1.0]}


def test_an_empty_batch_reads_nothing_and_writes_nothing():
    assert keyed.read({"a": 1.0}, [], 0.0).tolist() == []
    assert keyed.write({"a": 1.0}, [], []) == {"a": 1.0}
    assert keyed.adam({"a": [1.0, 0.0, 0.0, 1.0]}, [], [], 0.1) == {"a": [1.0, 0.0, 0.0, 1.0]}


def test_means_are_in_the_order_of_first_occurrence():
    found = keyed.mean(["b", "a", "b"], torch.tensor([[1.0, 2.0], [5.0, 6.0], [3.0, 4.0]]))
    assert [(key, value.tolist()) for key, value in found.items()] == [("b", [2, 3]), ("a", [5, 6])]


def test_an_exponential_average_starts_at_its_first_value():
    state = {}
    for value in (4.0, 8.0, 0.0):
        state = keyed.ema(state, ["a"], torch.tensor([value]), decay=0.75)
    assert state == {"a": pytest.approx((4 * 0.75 + 8 * 0.25) * 0.75)}


def test_stored_tensors_are_detached_copies():
    values = torch.ones(2, 3, requires_grad=True)
    state = keyed.write_tensors({}, ["a", "b"], 2 * values)
    assert not any(tensor.requires_grad for tensor in state.values())
    rows = torch.ones(2, 3)
    state = keyed.write_tensors({}, ["a", "b"], rows)
    rows.zero_()
    assert [tensor.tolist() for tensor in state.values()] == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_gives_the_values_of_pytorchs_adam(weight_decay):
    generator = torch.Generator().manual_seed(0)
    theirs = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([theirs], lr=0.03, weight_decay=weight_decay)
    keys, ours = ["a", "b", "c"], {}
    for _ in range(50):
        gradients = torch.randn(3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 1e-3, 1e3])
        theirs.grad = gradients
        optimizer.step()
        ours = keyed.adam(ours, keys, gradients, 0.03, weight_decay=weight_decay)
    torch.testing.assert_close(keyed.values(ours, keys), theirs.detach(), rtol=1e-10, atol=1e-12)


def test_adam_keeps_values_within_the_bound():
    state = {}
    for _ in range(100):
        state = keyed.adam(state, ["up", "down"], [-1.0, 1.0], 0.5, bound=3.0)
    assert keyed.values(state, ["up", "down"]).tolist() == [3.0, -3.0]
    assert all(math.isfinite(number) for moments in state.values() for number in moments)
