"""Estimates as text."""

import math

import pytest
import torch

from gradhomog.diagnosis.estimates import Estimate, TransformedEstimate, interval, ratio_range, significant


def estimate(value: float, half_width: float) -> Estimate:
    return Estimate(*torch.tensor([value, half_width], dtype=torch.float64))


def transformed(value: float, low: float, high: float) -> TransformedEstimate:
    return TransformedEstimate(*torch.tensor([value, low, high], dtype=torch.float64))


@pytest.mark.parametrize(
    ("value", "half_width", "text"),
    [(0.1234, 0.01, "0.123 ± 0.010"), (-0.0001, 0.5, "0.000 ± 0.500"), (math.nan, math.nan, "unresolved")],
)
def test_intervals(value, half_width, text):
    assert interval(estimate(value, half_width)) == text


@pytest.mark.parametrize(
    ("value", "half_width", "text"),
    [(1234.5, 67.0, "1234 ± 67"), (0.00123, 0.0004, "0.00123 ± 0.00040"), (1.5e-9, 2e-10, "1.50e-09 ± 2e-10"),
     (0.0, 0.0, "0.00 ± 0.00"), (math.nan, math.nan, "unresolved")],
)  # fmt: skip
def test_three_significant_digits(value, half_width, text):
    assert significant(estimate(value, half_width)) == text


@pytest.mark.parametrize(
    ("ends", "text"),
    [((16, 11, 28), "16 × (11 to 28)"), ((16, 11, math.inf), "16 × (> 11)"), ((math.inf, 11, math.inf), "> 11 ×"),
     ((math.inf, 0, math.inf), "unresolved"), ((math.inf, math.inf, math.inf), "unresolved"),
      ((math.nan, 1, 2), "unresolved")],
)  # fmt: skip
def test_ranges_of_ratios(ends, text):
    assert ratio_range(transformed(*ends), unit=" ×") == text
