"""The search for an input that breaks a property: what it reports, how far it simplifies, what it leaves to others."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from gradhomog import OptionError
from gradhomog.testing import CheckFailure, jacobians, property_search
from gradhomog.testing.checking import FAST, SHRINKING
from gradhomog.testing.property_search import for_all

NUMBERS = st.integers(0, 10**9)


def broken(function, *, shrinking=True, **inputs):
    """The failure of a property that some input breaks."""
    token = SHRINKING.set(shrinking)
    try:
        with pytest.raises(CheckFailure) as raised:
            for_all(**inputs)(function)
    finally:
        SHRINKING.reset(token)
    return raised.value


def at_most_a_thousand(seen):
    def property_of(number):
        seen.append(number)
        if number > 1000:
            raise CheckFailure(f"{number} is more than 1000", half=number / 2)

    return property_of


def test_the_simplest_input_that_fails_is_reported_with_what_the_failure_shows():
    failure = broken(at_most_a_thousand([]), number=NUMBERS)
    assert str(failure) == "1001 is more than 1000"
    assert failure.example == {"number": 1001, "half": 500.5}


def test_where_it_is_no_fault_the_first_input_that_fails_is_reported_and_not_simplified():
    seen = []
    failure = broken(at_most_a_thousand(seen), shrinking=False, number=NUMBERS)
    first = next(number for number in seen if number > 1000)
    assert failure.example["number"] == first > 1001
    assert set(seen[seen.index(first) :]) == {first}


@pytest.mark.parametrize("profile", ["ci", "explore", "default"])
def test_a_property_that_holds_is_tried_on_the_same_inputs_at_every_run_whatever_the_profile(profile):
    def drawn():
        seen = []
        for_all(examples=25, number=NUMBERS)(lambda number: seen.append(number))
        return seen

    expected, former = drawn(), hypothesis.settings.get_current_profile_name()
    hypothesis.settings.load_profile(profile)
    try:
        assert drawn() == expected
    finally:
        hypothesis.settings.load_profile(former)
    assert len(expected) == 25
    assert len(set(expected)) > 15


def test_the_fast_mode_tries_a_quarter_as_many_inputs():
    seen = []
    token = FAST.set(True)
    try:
        for_all(examples=40, number=NUMBERS)(lambda number: seen.append(number))
    finally:
        FAST.reset(token)
    assert len(seen) == 10


def test_several_inputs_are_reported_by_name_as_plain_data():
    def property_of(jacobian, dtype):
        assert len(jacobian) < 2 or dtype is torch.float64

    failure = broken(property_of, jacobian=jacobians(), dtype=st.sampled_from([torch.float64, torch.float32]))
    assert failure.example == {"jacobian": [[0.0], [0.0]], "dtype": "torch.float32"}


def test_what_the_failure_shows_by_the_name_of_an_input_is_shown_in_its_place():
    def property_of(number):
        raise CheckFailure("no", number="none will do")

    assert broken(property_of, number=NUMBERS).example == {"number": "none will do"}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ZeroDivisionError("by zero"), "raised ZeroDivisionError: by zero"),
        (OptionError("`rate` must be positive."), "OptionError: `rate` must be positive."),
    ],
)
def test_any_error_is_told_with_its_input_and_kept_as_the_cause(error, message):
    def property_of(number):
        if number > 7:
            raise error

    failure = broken(property_of, number=NUMBERS)
    assert (str(failure), failure.example) == (message, {"number": 8})
    assert failure.__cause__ is error


def test_one_that_fails_only_once_is_told_as_such():
    failed = []

    def property_of(number):
        if number > 7 and not failed:
            failed.append(number)
            raise CheckFailure("by chance")

    failure = broken(property_of, number=NUMBERS)
    assert str(failure) == "by chance; with the same input it did not fail the next time"
    assert failure.example == {"number": failed[0]}


def test_an_input_that_is_assumed_away_is_no_failure():
    def property_of(number):
        hypothesis.assume(number <= 1000)
        if number > 500:
            raise CheckFailure("no")

    assert broken(property_of, number=NUMBERS).example == {"number": 501}


def test_simplifying_ends_in_time_with_the_simplest_input_so_far(monkeypatch):
    monkeypatch.setattr(property_search, "SIMPLIFYING", 5)
    seen = []
    failure = broken(at_most_a_thousand(seen), number=NUMBERS)
    tried = seen[next(place for place, number in enumerate(seen) if number > 1000) :]
    assert len(tried) == 6  # the first failure, and five more runs
    assert failure.example["number"] == [number for number in tried if number > 1000][-1]
    assert str(failure) == f"{failure.example['number']} is more than 1000"


@pytest.mark.parametrize("end", [KeyboardInterrupt, pytest.fail.Exception])
def test_what_ends_the_whole_run_ends_the_search(end):
    def property_of(number):
        raise end("enough")

    with pytest.raises(end, match="enough"):
        for_all(number=NUMBERS)(property_of)
