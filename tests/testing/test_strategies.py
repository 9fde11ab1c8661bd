"""The strategy `jacobians`: requested and allowed properties of inputs, and shrinking."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from gradhomog.testing import jacobians

ORDINARY = {"zero": False, "duplicate": False, "opposite": False}


def simplest(strategy, condition):
    """Return the simplest input with a property that hypothesis finds; the same in every run."""
    search = settings(
        max_examples=300, derandomize=True, database=None, deadline=None, phases=(Phase.generate, Phase.shrink)
    )
    return find(strategy, condition, settings=search)


def exists(strategy, condition):
    """True if one of a few hundred inputs has a property; else raise."""
    search = settings(max_examples=500, derandomize=True, database=None, deadline=None, phases=(Phase.generate,))
    find(strategy, condition, settings=search)  # raises if there is none
    return True


def pairs(rows):
    return itertools.combinations(rows, 2)


def has_zero(rows):
    return any(not row.any() for row in rows)


def has_duplicate(rows):
    return any(torch.equal(one, other) and one.any() for one, other in pairs(rows))


def has_opposite(rows):
    return any(torch.equal(one, -other) and one.any() for one, other in pairs(rows))


def orders_of_magnitude(norms):
    """Return the decimal logarithm of the ratio of the largest to the smallest nonzero norm."""
    norms = norms[norms > 0]
    return float((norms.max() / norms.min()).log10()) if len(norms) else 0.0


@given(jacobians())
def test_rows_are_finite_float64_of_one_to_six_tasks_and_one_to_twelve_params(jacobian):
    assert jacobian.dtype == torch.float64
    assert 1 <= len(jacobian) <= 6
    assert 1 <= jacobian.shape[1] <= 12
    assert jacobian.isfinite().all()
    assert not (jacobian.signbit() & (jacobian == 0)).any()  # -0.0 would be another input with the same repr


@given(st.data(), st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
def test_numbers_of_tasks_and_params_are_as_requested(data, tasks, params, more):
    exact = data.draw(jacobians(tasks, params))
    within = data.draw(jacobians((tasks, tasks + more), (params, params + more)))
    assert exact.shape == (tasks, params)
    assert tasks <= within.shape[0] <= tasks + more
    assert params <= within.shape[1] <= params + more


@given(st.data(), st.sampled_from([0, 0.5, 2, 6]))
def test_norms_are_within_the_requested_spread(data, spread):
    assert orders_of_magnitude(data.draw(jacobians(spread=spread)).norm(dim=1)) <= spread + 1e-9


@pytest.mark.parametrize("spread", [1, 6])
def test_the_requested_spread_is_reached(spread):
    assert exists(jacobians(spread=spread), lambda rows: orders_of_magnitude(rows.norm(dim=1)) > 0.9 * spread)


@pytest.mark.parametrize(
    ("name", "has"), [("zero", has_zero), ("duplicate", has_duplicate), ("opposite", has_opposite)]
)
def test_degenerate_rows_are_drawn_only_if_allowed(name, has):
    # Single numbers of equal size: two of them are equal or opposite unless the strategy prevents it.
    @given(jacobians((1, 2), 1, spread=0, **{name: False}))
    def never(jacobian):
        assert not has(jacobian)

    never()
    # Rows of eight entries are not degenerate by chance.
    assert exists(jacobians(tasks=(2, 6), params=8, **{**ORDINARY, name: True}), has)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "simple"),
    [
        (lambda rows: True, (1, 0)),
        (lambda rows: len(rows) >= 3, (3, 0)),
        (lambda rows: rows.any(), (1, 1)),
        (lambda rows: rows.max() > 2, (1, 3)),
        (lambda rows: (rows != rows.round()).any(), (1, 0.5)),
        (lambda rows: (rows @ rows.T < 0).any(), (2, 1)),
        (lambda rows: has_zero(rows) and rows.any(), (2, 1)),
    ],
    ids=["anything", "three tasks", "not zero", "more than two", "not a whole number", "conflict", "a zero row"],
)
def test_simplest_rows_are_few_short_and_consist_of_small_round_numbers(condition, simple):
    tasks, largest = simple
    jacobian = simplest(jacobians(), condition)
    assert jacobian.shape == (tasks, 1)
    assert float(jacobian.abs().max()) <= largest
    assert torch.equal(2 * jacobian, (2 * jacobian).round())  # a search may end at 2.5 although 3 is simpler
