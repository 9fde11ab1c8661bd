"""The number of seeds agrees with statsmodels, and its limits."""

import math

import numpy as np
import pytest

from gradhomog.experiments.analysis.statistics import deviation_factors, paired_power, seeds_needed


# Computed with statsmodels 0.14: TTestPower().solve_power(effect, power=0.8, alpha=0.05), rounded up.
@pytest.mark.parametrize(("effect", "n"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (2.0, 5), (2.5, 4), (4.0, 3)])
def test_the_number_of_seeds_equals_that_of_statsmodels(effect, n):
    assert seeds_needed(effect, 1.0) == n
    assert seeds_needed(3 * effect, 3.0) == n


# Computed with statsmodels 0.14: TTestPower().power(effect, 10, 0.05).
@pytest.mark.parametrize(("effect", "power"), [(0.2, 0.0876571540), (0.5, 0.2931756065), (0.8, 0.6162327634)])
def test_the_power_equals_that_of_statsmodels(effect, power):
    assert paired_power(effect, 10) == pytest.approx(power, rel=1e-7)


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
