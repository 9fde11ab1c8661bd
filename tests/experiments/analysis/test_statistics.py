"""Intervals, paired tests and their power, and Holm's procedure, against SciPy, statsmodels and closed testing."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradhomog.experiments.analysis.statistics import deviation_factors, holm, mean_interval, paired_test, seeds_needed

finite = st.floats(-1e6, 1e6)
samples = st.lists(finite, min_size=2, max_size=30)


@given(samples)
def test_the_interval_of_a_mean_is_that_of_scipy(values):
    found = mean_interval(values)
    scale = max(1e-9, *map(abs, values))
    assert found.n == len(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9 * scale)
    width = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    assert found.half_width == pytest.approx(width, rel=1e-6, abs=1e-9 * scale)


@given(samples, st.data())
def test_the_paired_test_is_that_of_scipy(values, data):
    others = data.draw(st.lists(finite, min_size=len(values), max_size=len(values)))
    found = paired_test(values, others)
    scale = max(1e-9, *map(abs, values), *map(abs, others))
    gaps = np.subtract(values, others)
    width = stats.t.ppf(0.975, len(values) - 1) * stats.sem(gaps)
    assert found.difference.mean == pytest.approx(gaps.mean(), abs=1e-9 * scale)
    assert found.difference.half_width == pytest.approx(width, rel=1e-6, abs=1e-9 * scale)
    if found.deviation > 1e-6 * scale:  # else SciPy warns of lost digits
        assert found.p_value == pytest.approx(stats.ttest_rel(values, others).pvalue, rel=1e-6)
        assert found.deviation == pytest.approx(np.std(gaps, ddof=1), rel=1e-6)


@given(finite, st.integers(2, 50))
def test_equal_values_have_exactly_their_value_as_mean_and_no_width(value, n):
    found = mean_interval([value] * n)
    assert (found.mean, found.half_width) == (value, 0)


def test_a_constant_difference_has_no_spread_and_the_smallest_p_value():
    found = paired_test([1.5, 2.5, 3.5], [1, 2, 3])
    assert (found.difference.mean, found.difference.half_width, found.p_value) == (0.5, 0, 0)


def test_one_value_has_a_mean_but_no_width_and_no_p_value():
    found = paired_test([0.5], [0.25])
    assert found.difference.mean == 0.25
    assert math.isnan(found.difference.half_width)
    assert math.isnan(found.p_value)
    assert math.isnan(found.deviation)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_gives_nan(bad):
    found = paired_test([0.5, bad, 0.7], [0.0, 0.0, 0.0])
    assert math.isnan(found.difference.mean)
    assert math.isnan(found.difference.half_width)
    assert math.isnan(found.p_value)
    assert found.difference.n == 3


# Computed with statsmodels 0.14: TTestPower().solve_power(effect, power=0.8, alpha=0.05), rounded up.
@pytest.mark.parametrize(("effect", "n"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (2.0, 5), (2.5, 4), (4.0, 3)])
def test_the_number_of_seeds_equals_that_of_statsmodels(effect, n):
    assert seeds_needed(effect, 1.0) == n
    assert seeds_needed(3 * effect, 3.0) == n


@pytest.mark.parametrize("deviation", [1e-300, 1e-17, 1e-3])
def test_a_difference_far_above_the_spread_needs_two_seeds(deviation):
    assert seeds_needed(1.0, deviation) == 2


def test_a_difference_far_below_the_spread_needs_millions_of_seeds():
    # (1.96 + 0.84)² · 1e8, the normal approximation, which is accurate there.
    assert seeds_needed(1e-4, 1.0) == pytest.approx(7.8489e8, rel=1e-4)


def test_the_spread_of_few_values_is_uncertain_as_simulations_show():
    low, high = deviation_factors(3)
    deviations = np.random.default_rng(0).normal(size=(20000, 3)).std(axis=1, ddof=1)
    covered = ((low * deviations <= 1) & (high * deviations >= 1)).mean()
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 20000)


p_lists = st.lists(st.floats(0, 1), max_size=6)


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
