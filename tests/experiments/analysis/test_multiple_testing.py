"""Holm's procedure equals the closed testing procedure."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradhomog.experiments.analysis.paired_comparison import holm

p_lists = st.lists(st.floats(0, 1), min_size=1, max_size=6)


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


def test_a_single_test_is_not_corrected_and_none_gives_none():
    assert holm([0.04]) == [0.04]
    assert holm([]) == []
