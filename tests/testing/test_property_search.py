"""The search for an input that violates a property: reports, simplification, and errors that stop it."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from gradhomog import OptionError
from gradhomog.testing import CheckFailure, property_search
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


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (OptionError("`rate` must be positive."), "OptionError: `rate` must be positive."),
    ],
)
def test_any_error_is_reported_with_its_input_and_is_the_cause(error, message):
    def property_of(number):
        if number > 7:
            raise error

    failure = failure_of(property_of, number=NUMBERS)
    assert (str(failure), failure.example) == (message, {"number": 8})
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


@pytest.mark.parametrize("exception", [KeyboardInterrupt, pytest.fail.Exception])
def test_exceptions_that_stop_the_process_stop_the_search(exception):
    def property_of(number):
        raise exception("enough")

    with pytest.raises(exception, match="enough"):
        for_all(number=NUMBERS)(property_of)
