"""Intervals and paired tests: agreement with SciPy, and exact special cases."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradhomog.experiments.analysis.statistics import mean_interval, paired_test

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


@given(samples)
def test_a_sample_does_not_differ_from_itself(values):
    found = paired_test(values, values)
    assert (found.difference.mean, found.difference.half_width) == (0, 0)
    assert (found.p_value, found.deviation) == (1, 0)


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
