"""Both parameterizations of rotations: orthogonality in float32, and limits of their angles."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradhomog_plugins._rotations.geodesic import Geodesic
from gradhomog_plugins._rotations.plane import Plane

both = pytest.mark.parametrize("form", [Plane, Geodesic])
seeds = st.integers(0, 10_000)


def directions(count, features, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(2, count, features, generator=generator).double(), dim=-1)


def pairs_of(form, seed, features=8):
    """One pair for a plane; one to three for a dense rotation."""
    return directions(1 if form is Plane else 1 + seed % 3, features, seed)


def after(form, seed, steps, features=8, lr=0.3, max_angle=math.pi):
    """A rotation after several steps for random directions."""
    rotation = form.identity(pairs_of(form, seed, features)[1])
    for step in range(steps):
        rotation = rotation.step(*pairs_of(form, seed + step, features), lr, max_angle)
    return rotation


def matrix(rotation, features=8, dtype=torch.float64):
    """R itself: the images of the unit vectors are its columns."""
    return rotation.rotate(torch.eye(features, dtype=dtype)).T


def defect(square):
    return float((square.T @ square - torch.eye(len(square), dtype=square.dtype)).abs().max())


def principal(square):
    """The largest principal angle."""
    return float(torch.linalg.eigvals(square).angle().abs().max())


@both
@pytest.mark.parametrize("features", [512, 1600])
def test_it_is_orthogonal_in_float32_for_many_features(form, features):
    rotation = after(form, 1, 2 if form is Geodesic else 4, features=features, lr=0.5)
    assert rotation.angle > 0.1
    assert defect(matrix(rotation, features, torch.float32)) < 5e-6


@both
def test_it_aligns_one_pair_completely_by_the_smallest_rotation(form):
    u, v = directions(1, 8, seed=3)
    rotation = form.identity(v)
    for _ in range(300):
        rotation = rotation.step(u, v, 0.05)
    assert rotation.alignment(u, v) > 1 - 1e-6
    assert rotation.angle == pytest.approx(math.acos(float((u * v).sum())), abs=1e-2)
    torch.testing.assert_close(rotation.rotate(v), u, rtol=0, atol=1e-3)
    complement = torch.linalg.qr(torch.cat([u, v]).T, mode="complete")[0][:, 2:].T
    torch.testing.assert_close(rotation.rotate(complement), complement, rtol=0, atol=1e-9)


@both
@pytest.mark.parametrize("features", [16, 64, 512])
def test_a_first_step_turns_by_its_rate_for_any_number_of_features(form, features):
    rotation = form.identity(directions(1, features, seed=features)[1])
    rotation = rotation.step(*directions(1, features, seed=features), 5e-4)
    assert 4e-4 < rotation.angle < 5.01e-4


@both
@pytest.mark.parametrize("max_angle", [0.5, math.pi])
@given(seed=seeds)
def test_every_step_keeps_its_rate_and_the_limit(form, max_angle, seed):
    # Regression: with lr · steps as limit of the angle from the identity, later steps turned by up to a radian.
    rotation = after(form, seed, 4, lr=0.2, max_angle=max_angle)
    for step in range(6):
        before = matrix(rotation)
        rotation = rotation.step(*pairs_of(form, seed + step, 8), 0.05, max_angle)
        now = matrix(rotation)
        assert principal(before.T @ now) < 0.05 * (1 + 1e-5)
        assert principal(now) <= max_angle + 1e-6
        assert rotation.angle <= max_angle + 1e-6
        assert defect(now) < 1e-9


@both
def test_at_the_maximum_angle_it_can_still_turn_to_other_directions(form):
    # Regression: with steps that were undone at the limit, the alignment was 0 after a thousand of them.
    first, second, third, fourth = torch.eye(8, dtype=torch.float64)[:4].split(1)
    rotation = form.identity(second)
    for _ in range(60):
        rotation = rotation.step(first, second, 0.02, 0.5)
    assert rotation.angle > 0.49
    for _ in range(400):
        rotation = rotation.step(third, fourth, 0.02, 0.5)
    assert rotation.angle <= 0.5 + 1e-6
    assert rotation.alignment(third, fourth) > 0.3


@both
def test_an_angle_does_not_exceed_its_limit_over_many_steps(form):
    u, v = directions(1, 8, seed=0)
    rotation = form.identity(v)
    for _ in range(500):
        rotation = rotation.step(u, v, 8e-7, 1e-4)
    assert rotation.angle < 1e-4 * (1 + 1e-3)


@both
@pytest.mark.parametrize("sign", [1, -1])
def test_parallel_and_opposite_directions_are_not_turned(form, sign):
    u, _ = directions(1, 6, seed=0)
    assert form.identity(u).step(u, sign * u, 7).angle == pytest.approx(0, abs=1e-7)


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_rotated_in_float32_and_keep_their_dtype(form, dtype):
    rotation, x = after(form, 0, 1), torch.randn(5, 8).to(dtype)
    assert rotation.rotate(x).dtype == dtype
    assert torch.equal(rotation.rotate(x), rotation.rotate(x.float()).to(dtype))
