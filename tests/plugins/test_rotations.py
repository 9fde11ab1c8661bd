"""Both parameterizations of rotations: orthogonality, and limits of their angles."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradhomog_plugins._rotations.base import updated_state
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
@given(seed=seeds, steps=st.integers(0, 12))
def test_it_is_a_rotation_and_keeps_norms(form, seed, steps):
    rotation = after(form, seed, steps)
    exact, single = matrix(rotation), matrix(rotation, dtype=torch.float32)
    assert defect(exact) < 1e-12
    assert defect(single) < 5e-6
    assert float(torch.linalg.det(exact)) == pytest.approx(1.0, rel=1e-9)
    x = torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(rotation.rotate(x).norm(dim=1), x.norm(dim=1), rtol=1e-12, atol=0)
    torch.testing.assert_close(rotation.rotate(rotation.rotate(x), transposed=True), x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rotation.rotate(x), x @ exact.T, rtol=1e-10, atol=1e-12)
    if steps == 0:
        torch.testing.assert_close(exact, torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-14)
        assert rotation.angle == pytest.approx(0, abs=1e-7)


@pytest.mark.slow
@both
def test_it_is_orthogonal_after_a_million_steps(form):
    """Errors of the plane do not accumulate; those of the matrix grow at most linearly: 3,000 steps give the rate."""
    steps = 3_000
    rotation = after(form, 0, steps, features=4, lr=0.01)
    assert defect(matrix(rotation, 4)) * (1e6 / steps) < 1e-8
    assert defect(matrix(rotation, 4, torch.float32)) < 5e-6


@both
@pytest.mark.parametrize("features", [512, 1600])
def test_it_is_orthogonal_in_float32_for_many_features(form, features):
    rotation = after(form, 1, 2 if form is Geodesic else 4, features=features, lr=0.5)
    assert rotation.angle > 0.1
    assert defect(matrix(rotation, features, torch.float32)) < 5e-6


@both
@given(seed=seeds, lr=st.floats(1e-4, 1.5), before=st.integers(0, 3))
def test_one_step_never_lowers_the_alignment_and_changes_no_value_in_place(form, seed, lr, before):
    rotation = after(form, seed + 1, before, lr=lr)
    u, v = pairs_of(form, seed)
    unchanged = rotation.tensor.clone()
    assert rotation.step(u, v, lr).alignment(u, v) >= rotation.alignment(u, v) - 1e-9
    assert torch.equal(rotation.tensor, unchanged)


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
def test_a_first_step_follows_the_gradient_of_the_alignment(form):
    u, v = directions(1, 4, seed=2)
    rotation = form.identity(v).step(u, v, 1e-4)
    change = rotation.alignment(u, v) - float((u * v).sum())
    steepest = math.sqrt(1 - float((u * v).sum()) ** 2) * rotation.angle  # d cos θ = sin θ dθ in the plane of u and v
    assert 0.99 * steepest < change < 1.01 * steepest


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
def test_the_angle_is_that_of_a_rotation_in_one_plane(form):
    u, v = directions(1, 5, seed=4)
    rotation = form.identity(v).step(u, v, 0.7)
    assert rotation.angle == pytest.approx(principal(matrix(rotation, 5)), abs=1e-6)


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_rotated_in_float32_and_keep_their_dtype(form, dtype):
    rotation, x = after(form, 0, 1), torch.randn(5, 8).to(dtype)
    assert rotation.rotate(x).dtype == dtype
    assert torch.equal(rotation.rotate(x), rotation.rotate(x.float()).to(dtype))


def test_latest_keys_are_last_and_the_least_recently_used_are_removed_except_those_of_the_batch():
    state = {name: torch.zeros(1) for name in "abc"}
    turned = {"d": Plane(torch.ones(1)), "b": Plane(torch.ones(1))}
    assert list(updated_state(state, ["d", "b", "e"], turned)) == ["a", "c", "d", "b"]
    assert list(updated_state(state, ["a"], {}, limit=3)) == ["b", "c", "a"]
    assert list(updated_state(state, ["d", "b", "d"], turned, limit=3)) == ["c", "d", "b"]
    assert list(updated_state(state, ["d", "b"], turned, limit=1)) == ["d", "b"]
    assert list(state) == ["a", "b", "c"]
    assert float(updated_state(state, ["b", "d"], turned)["b"]) == 1
