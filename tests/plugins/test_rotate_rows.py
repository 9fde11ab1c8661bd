"""Rotation of the rows: each keeps its norm and turns by at most the angle, at most to the mean direction."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gradhomog
from gradhomog.testing import jacobians


def mixing(text, rows):
    """The homogenized rows, by the mixing matrix that the stage returns."""
    [method] = gradhomog.pipeline(text)
    step = gradhomog.Step(tuple(map(gradhomog.TaskKey, range(len(rows)))), gradhomog.as_jacobian(rows))
    found = method.mix(step)
    return (torch.diag(found) if found.dim() == 1 else found).to(rows) @ rows


@given(rows=jacobians(params=(3, 12)), angle=st.floats(0, math.pi))
def test_norms_are_kept_and_rows_turn_by_at_most_the_angle_towards_the_mean_direction(rows, angle):
    mean = torch.nn.functional.normalize(rows, dim=1).sum(0)
    assume(mean.norm() > 1e-3)
    turned = mixing(f"rotate_rows(max_angle={angle})", rows)
    torch.testing.assert_close(turned.norm(dim=1), rows.norm(dim=1), rtol=1e-7, atol=1e-12)
    for old, new in zip(rows, turned, strict=True):
        if old.norm() == 0:
            continue
        theta, left = (float(torch.atan2((x / x.norm() - (x / x.norm() @ mean) * mean / mean.norm() ** 2).norm(),
                       x / x.norm() @ mean / mean.norm())) for x in (old, new))  # fmt: skip
        opposite = math.pi - theta < 1e-6
        assert left == pytest.approx(theta if opposite else max(theta - angle, 0), abs=1e-5)


def test_angle_zero_is_the_plain_learner_and_opposite_rows_are_unchanged():
    rows = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(mixing("rotate_rows(max_angle=0)", rows), rows)
    opposite = torch.tensor([[1.0, 2.0], [-2.0, -4.0]], dtype=torch.float64)
    torch.testing.assert_close(mixing("rotate_rows", opposite), opposite)
    lone = torch.tensor([[1.0, 0], [1.0, 0], [-1.0, 0]], dtype=torch.float64)  # opposite to the mean: no plane
    torch.testing.assert_close(mixing("rotate_rows", lone), lone)


@pytest.mark.parametrize("noise", [0, 1e-4, 1e-2])
def test_nearly_opposite_float32_rows_keep_their_norms(noise):
    # Regression: with thresholds of float64 on a float32 Gramian, entries were 13,000, and norms 2e-4 of theirs.
    generator = torch.Generator().manual_seed(0)
    row = torch.randn(100_000, generator=generator)
    rows = torch.stack([row, -3 * row + noise * torch.randn(100_000, generator=generator)])
    turned = mixing("rotate_rows", rows)
    torch.testing.assert_close(turned.norm(dim=1), rows.norm(dim=1), rtol=1e-2, atol=0)
