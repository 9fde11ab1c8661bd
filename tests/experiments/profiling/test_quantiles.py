"""The interval of a median, compared with SciPy's binomial distribution."""

import math

import pytest
from scipy import stats

from gradhomog.experiments.profiling.table import Quantiles


@pytest.mark.parametrize("n", [6, 7, 15, 50, 101])
def test_the_interval_of_the_median_is_the_narrowest_with_95_percent_coverage(n):
    found = Quantiles.of([float(value) for value in range(1, n + 1)])
    rank = round(found.low)
    assert found.high == n + 1 - rank
    assert 2 * stats.binom.cdf(rank - 1, n, 0.5) <= 0.05 < 2 * stats.binom.cdf(rank, n, 0.5)
    assert found.median == (n + 1) / 2


def test_fewer_than_six_values_have_no_interval_and_an_empty_list_is_an_error():
    found = Quantiles.of([3.0, 1.0, 2.0])
    assert (found.median, found.n) == (2.0, 3)
    assert math.isnan(found.low)
    assert found.record()["low"] is None
    assert Quantiles.of([4.0]).median == 4.0
