"""The solution of Burgers' equation: adaptive integration, its conditions, and a published value."""

import numpy as np
import pytest
from scipy.integrate import quad

from gradhomog_data.problems.burgers import burgers_solution

VISCOSITY = 0.01 / np.pi


def by_adaptive_integration(x, t):
    """Both integrals of the Cole-Hopf transformation by adaptive quadrature, on their scale."""

    def exponent(shift):
        return -np.cos(np.pi * (x - shift)) / (2 * np.pi * VISCOSITY) - shift**2 / (4 * VISCOSITY * t)

    shifts = np.linspace(-3, 3, 60_001)
    largest = exponent(shifts).max()
    peak = shifts[exponent(shifts).argmax()]
    options = {"limit": 1000, "epsabs": 1e-13, "epsrel": 1e-12, "points": sorted([peak, peak - 0.05, peak + 0.05])}
    above = quad(lambda s: np.sin(np.pi * (x - s)) * np.exp(exponent(s) - largest), -3, 3, **options)[0]
    below = quad(lambda s: np.exp(exponent(s) - largest), -3, 3, **options)[0]
    return -above / below


@pytest.mark.parametrize(
    ("x", "t"), [(0.3, 0.2), (0.001, 1.0), (-0.7, 0.6), (0.99, 0.01), (0.5, 0.5), (-0.02, 0.4), (0.999, 1.0)]
)
def test_values_are_those_of_adaptive_integration(x, t):
    actual = burgers_solution(np.array([x]), np.array([t]), VISCOSITY)[0]
    assert actual == pytest.approx(by_adaptive_integration(x, t), rel=1e-9, abs=1e-10)


def test_initial_and_boundary_conditions_hold_and_the_solution_is_odd():
    x, t = np.linspace(-1, 1, 41), np.linspace(0, 1, 41)
    np.testing.assert_allclose(burgers_solution(x, 0 * x, VISCOSITY), -np.sin(np.pi * x), atol=1e-12)
    for side in (-1.0, 1.0):
        np.testing.assert_allclose(burgers_solution(0 * t + side, t, VISCOSITY), 0, atol=1e-12)
    inside = burgers_solution(x, 0 * x + 0.7, VISCOSITY)
    np.testing.assert_allclose(inside, -burgers_solution(-x, 0 * x + 0.7, VISCOSITY), atol=1e-12)


def test_the_largest_slope_is_that_of_the_literature():
    """|u_x| at x = 0 is largest at πt = 1.6037, with 152.00516 (Basdevant et al. 1986, Table 1)."""
    time, step = 1.6037 / np.pi, 1e-5
    values = burgers_solution(np.array([-2, -1, 1, 2]) * step, np.full(4, time), VISCOSITY)
    slope = values @ np.array([1, -8, 8, -1]) / (12 * step)
    assert abs(slope) == pytest.approx(152.00516, rel=1e-5)
