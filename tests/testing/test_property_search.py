"""The search for an input that violates a property, and the strategy of Jacobians: what it draws and shrinks to."""

import itertools

import hypothesis
import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from gradhomog.testing import CheckFailure, jacobians, property_search
from gradhomog.testing.check_results import SHRINKING
from gradhomog.testing.property_search import for_all

NUMBERS = st.integers(0, 10**9)


def failure_of(function, *, shrinking=True, **inputs):
    """Return the failure of a property that some inputs violate."""
    token = SHRINKING.set(shrinking)
    try:
        with pytest.raises(CheckFailure) as raised:
            for_all(**inputs)(function)
    finally:
        SHRINKING.reset(token)
    return raised.value


def at_most_a_thousand(drawn_numbers):
    def property_of(number):
        drawn_numbers.append(number)
        if number > 1000:
            raise CheckFailure(f"{number} is more than 1000", half=number / 2)

    return property_of


def test_the_simplest_failing_input_is_reported_with_the_example_of_the_failure():
    inputs = {"number": NUMBERS, "dtype": st.sampled_from([torch.float64, torch.float32])}
    check = at_most_a_thousand([])
    failure = failure_of(lambda number, dtype: check(number), **inputs)
    assert str(failure) == "1001 is more than 1000"
    assert failure.example == {"number": 1001, "dtype": "torch.float64", "half": 500.5}


def test_without_shrinking_the_first_failing_input_is_reported():
    drawn_numbers = []
    failure = failure_of(at_most_a_thousand(drawn_numbers), shrinking=False, number=NUMBERS)
    first = next(number for number in drawn_numbers if number > 1000)
    assert failure.example["number"] == first > 1001
    assert set(drawn_numbers[drawn_numbers.index(first) :]) == {first}


@pytest.mark.parametrize("profile", ["ci", "explore", "default"])
def test_every_run_draws_the_same_inputs_under_every_hypothesis_profile(profile):
    def draw_numbers():
        drawn_numbers = []
        for_all(examples=25, number=NUMBERS)(lambda number: drawn_numbers.append(number))
        return drawn_numbers

    expected, former = draw_numbers(), hypothesis.settings.get_current_profile_name()
    hypothesis.settings.load_profile(profile)
    try:
        assert draw_numbers() == expected
    finally:
        hypothesis.settings.load_profile(former)
    assert len(expected) == 25
    assert len(set(expected)) > 15


def test_any_error_is_reported_with_its_input_and_is_the_cause():
    error = ZeroDivisionError("by zero")

    def property_of(number):
        if number > 7:
            raise error

    failure = failure_of(property_of, number=NUMBERS)
    assert (str(failure), failure.example) == ("ZeroDivisionError: by zero", {"number": 8})
    assert failure.__cause__ is error


def test_a_failure_that_does_not_repeat_is_reported_as_such():
    failed = []

    def property_of(number):
        if number > 7 and not failed:
            failed.append(number)
            raise CheckFailure("by chance")

    failure = failure_of(property_of, number=NUMBERS)
    assert str(failure) == "by chance; a second run with the same input did not fail"
    assert failure.example == {"number": failed[0]}


def test_shrinking_stops_at_its_limit_with_the_simplest_input_so_far(monkeypatch):
    monkeypatch.setattr(property_search, "SHRINK_LIMIT", 5)
    drawn_numbers = []
    failure = failure_of(at_most_a_thousand(drawn_numbers), number=NUMBERS)
    tried = drawn_numbers[next(index for index, number in enumerate(drawn_numbers) if number > 1000) :]
    assert len(tried) == 6  # the first failure, and five more runs
    assert failure.example["number"] == [number for number in tried if number > 1000][-1]
    assert str(failure) == f"{failure.example['number']} is more than 1000"


ORDINARY = {"zero": False, "duplicate": False, "opposite": False}


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
