"""Intervals agree with SciPy, and with what can be said without any formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradhomog.errors import OptionError
from gradhomog.experiments.analysis.statistics import mean_interval, paired_interval, t_quantile

finite = st.floats(-1e6, 1e6)
samples = st.lists(finite, min_size=2, max_size=30)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 31, 100, 299, 600, 2001])
def test_quantiles_are_those_of_scipy(level, degrees):
    assert t_quantile(level, degrees) == pytest.approx(stats.t.ppf((1 + level) / 2, degrees), rel=1e-10)


@pytest.mark.parametrize(("level", "degrees"), [(0, 3), (1, 3), (math.nan, 3), (0.95, 0)])
def test_a_quantile_that_does_not_exist_is_refused(level, degrees):
    with pytest.raises(OptionError, match="`level`"):
        t_quantile(level, degrees)


@given(samples)
def test_the_interval_of_a_mean_is_that_of_scipy(values):
    found = mean_interval(values)
    scale = max(1e-9, *map(abs, values))
    assert found.n == len(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9 * scale)
    width = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    assert found.half_width == pytest.approx(width, rel=1e-6, abs=1e-9 * scale)


@given(samples, st.data())
def test_the_paired_interval_is_that_of_the_paired_t_test(values, data):
    others = data.draw(st.lists(finite, min_size=len(values), max_size=len(values)))
    found = paired_interval(values, others)
    scale = max(1e-9, *map(abs, values), *map(abs, others))
    gaps = np.subtract(values, others)
    width = stats.t.ppf(0.975, len(values) - 1) * stats.sem(gaps)
    assert found.mean == pytest.approx(gaps.mean(), abs=1e-9 * scale)
    assert found.half_width == pytest.approx(width, rel=1e-6, abs=1e-9 * scale)


@given(finite, st.integers(2, 50))
def test_equal_values_have_exactly_their_value_as_mean_and_no_width(value, n):
    found = mean_interval([value] * n)
    assert (found.mean, found.half_width) == (value, 0)


@given(samples)
def test_the_difference_of_a_sample_to_itself_is_exactly_zero(values):
    found = paired_interval(values, values)
    assert (found.mean, found.half_width) == (0, 0)
    assert not found.excludes_zero


def test_one_value_has_a_mean_and_an_unknown_width_and_excludes_nothing():
    found = mean_interval([0.5])
    assert found.mean == 0.5
    assert math.isnan(found.half_width)
    assert not found.excludes_zero


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_makes_the_interval_nan_and_is_not_left_out(bad):
    found = mean_interval([0.5, bad, 0.7])
    assert math.isnan(found.mean)
    assert math.isnan(found.half_width)
    assert found.n == 3
    assert not found.excludes_zero


def test_no_value_and_unequal_numbers_of_values_are_refused():
    with pytest.raises(OptionError, match="at least one"):
        mean_interval([])
    with pytest.raises(OptionError, match="got 2 and 1"):
        paired_interval([1, 2], [1])


def test_the_interval_covers_the_true_mean_in_95_of_100_samples():
    random = np.random.default_rng(0)
    draws = 2000
    hits = sum(abs(found.mean) <= found.half_width for found in map(mean_interval, random.normal(size=(draws, 3))))
    assert abs(hits / draws - 0.95) < 4 * math.sqrt(0.95 * 0.05 / draws)
