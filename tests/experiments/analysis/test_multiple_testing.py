"""Holm's procedure: an example computed by hand, equality with the closed testing procedure, and bounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradhomog.experiments.analysis.paired_comparison import holm

p_lists = st.lists(st.floats(0, 1), min_size=1, max_size=6)


def test_an_example_computed_by_hand():
    # In order: 4 × 0.005 = 0.02, 3 × 0.01 = 0.03, 2 × 0.03 = 0.06, and 1 × 0.04 < 0.06, so 0.06 again.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def closed_bonferroni(p_values):
    """Adjusted p values of the closed testing procedure: a hypothesis is rejected if Bonferroni's test rejects every
    intersection that contains it. Holm's procedure is a shortcut of it."""
    numbers = range(len(p_values))
    subsets = [s for size in range(1, len(p_values) + 1) for s in itertools.combinations(numbers, size)]
    bonferroni = {subset: min(1.0, len(subset) * min(p_values[i] for i in subset)) for subset in subsets}
    return [max(p for subset, p in bonferroni.items() if i in subset) for i in numbers]


@given(p_lists)
def test_adjusted_values_are_those_of_the_closed_testing_procedure_of_bonferroni(p_values):
    assert holm(p_values) == pytest.approx(closed_bonferroni(p_values))


@given(p_lists)
def test_adjusted_values_lie_between_the_raw_ones_and_those_of_bonferroni(p_values):
    for raw, adjusted in zip(p_values, holm(p_values), strict=True):
        assert raw <= adjusted <= min(1, len(p_values) * raw) or adjusted == pytest.approx(raw)


@given(st.permutations([0.001, 0.02, 0.02, 0.4, 0.9]))
def test_the_order_of_the_tests_does_not_matter(p_values):
    by_value = dict(zip(p_values, holm(p_values), strict=True))
    assert by_value == pytest.approx({0.001: 0.005, 0.02: 0.08, 0.4: 0.8, 0.9: 0.9})


def test_a_single_test_is_not_corrected_and_none_gives_none():
    assert holm([0.04]) == [0.04]
    assert holm([]) == []
