"""Appendix "RotoGBML as Stackelberg games": a leader slower than its follower converges; a game of known eigenvalues.

Leader:   f(x, y) = −x²/2 + 2xy;  follower: h(x, y) = y²/2 − xy, whose best response is r(x) = x.
The point (0, 0) is a differential Stackelberg equilibrium: f(x, r(x)) = 3/2 x², with derivative 0 and curvature 3 > 0.
For a fixed y it is a maximum of f (∂²f/∂x² = −1), so that it is stable only if the follower is fast enough.

Gradient play with the rates a (leader) and b (follower):  z ← (I − D) z,  D = [[−a, 2a], [−b, b]]
trace D = b − a,  det D = ab,  eigenvalues of I − D complex with |λ|² = 1 − (b − a) + ab, unless |b − a| ≥ 2√(ab).
"""

from __future__ import annotations

import math

import numpy as np
import pytest

B = 0.01  # the follower's rate


def play(leader_rate, follower_rate, steps, start=(1.0, 0.5)):
    """Return |z| after every step of simultaneous gradient play; rates are functions of the step, counted from 1."""
    x, y = start
    sizes = []
    for step in range(1, steps + 1):
        a, b = leader_rate(step), follower_rate(step)
        x, y = x - a * (-x + 2 * y), y - b * (y - x)
        sizes.append(math.hypot(x, y))
    return np.array(sizes)


def constant(rate):
    return lambda step: rate


def decaying(rate, power):
    return lambda step: rate * step**-power


def spectral_radius(a, b):
    return float(np.abs(np.linalg.eigvals(np.eye(2) - np.array([[-a, 2 * a], [-b, b]]))).max())


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.0, 1.1, 2.0])
def test_the_eigenvalues_have_the_stated_size(ratio):
    assert spectral_radius(ratio * B, B) == pytest.approx(math.sqrt(1 - (1 - ratio) * B + ratio * B**2), rel=1e-12)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.5, 0.9])
def test_a_slower_leader_converges(ratio):
    """The ratio 0.5 is the paper's default, 5e-4 for the leader and 1e-3 for the follower."""
    steps = int(math.log(1e-8) / math.log(spectral_radius(ratio * B, B)))
    assert spectral_radius(ratio * B, B) < 1
    assert play(constant(ratio * B), constant(B), steps)[-1] < 1e-6


def test_equal_rates_oscillate():
    """|λ|² = 1 + b²: the amplitude is constant over many turns, except for the discretization."""
    sizes = play(constant(B), constant(B), 10_000)
    turn = int(2 * math.pi / B)
    amplitudes = [sizes[i : i + turn].max() for i in range(0, len(sizes) - turn, turn)]
    assert min(amplitudes) > 0.9 * amplitudes[0]
    assert amplitudes[-1] / amplitudes[0] == pytest.approx((1 + B**2) ** (turn * (len(amplitudes) - 1) / 2), rel=0.01)
    assert sizes[:turn].min() < 0.6 * sizes[:turn].max()  # the orbit is an ellipse


@pytest.mark.parametrize("ratio", [1.1, 2.0])
def test_a_faster_leader_diverges(ratio):
    steps = int(math.log(1e8) / math.log(spectral_radius(ratio * B, B)))
    assert play(constant(ratio * B), constant(B), steps)[-1] > 1e6


def test_with_decaying_rates_a_leader_that_starts_faster_converges_once_it_has_become_slower():
    """Follower b s^(−0.6), leader 4 b s^(−p): slower from s = 4^(1/(p − 0.6)) on: 32 for p = 1, 1024 for 0.8."""
    rate, steps = 0.1, 40_000
    sizes = {p: play(decaying(4 * rate, p), decaying(rate, 0.6), steps) for p in (1.0, 0.8, 0.6)}
    crossings = {p: 4 ** (1 / (p - 0.6)) for p in (1.0, 0.8)}
    for power, crossing in crossings.items():
        a, b = 4 * rate * crossing**-power, rate * crossing**-0.6
        assert a == pytest.approx(b)
        assert spectral_radius(0.9 * a, b) < 1 < spectral_radius(1.1 * a, b)
    assert sizes[1.0][-1] < 0.1 * sizes[1.0].max()
    assert sizes[0.8][:1024].max() > sizes[1.0].max()  # a later crossing leads to a larger maximum
    assert sizes[0.8][-1] < 0.1 * sizes[0.8].max()
    assert sizes[0.6][-1] > 1e3  # the leader never becomes slower, and play diverges


def test_the_proposition_requires_the_leaders_total_derivative():
    """Gradient play converges to a point with ∂f/∂x = 0, a Nash point; a term of y alone moves the Stackelberg point.

    With f + 3y the partial derivatives are unchanged, so play still converges to (0, 0), but f(x, r(x)) = 3/2 x² + 3x
    has its minimum at x = −1. With df/dx = ∂f/∂x + r'(x) ∂f/∂y, and r' = 1, play converges to that minimum.
    """

    def settle(total):
        x, y = 1.0, 0.5
        for _ in range(20_000):
            derivative = -x + 2 * y + (2 * x + 3 if total else 0)
            x, y = x - 0.5 * B * derivative, y - B * (y - x)
        return x, y

    assert settle(total=False) == pytest.approx((0, 0), abs=1e-6)
    assert settle(total=True) == pytest.approx((-1, -1), abs=1e-6)
