"""Every parameterisation of rotations: orthogonal for ever, never turned further or elsewhere than told."""

from __future__ import annotations

import math
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradhomog_plugins import _rotations
from gradhomog_plugins._rotations.base import Settings

NAMES = list(_rotations.BY_NAME)
CLOSED = ["plane", "procrustes"]
LEARNT = [name for name in NAMES if name not in CLOSED]


def made(name, features=8, lr=0.1, max_angle=math.pi, rank=4):
    return _rotations.make(name, features, Settings(lr, max_angle, rank), seed=1)


def directions(count, features, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(2, count, features, generator=generator).double(), dim=-1)


def matrix(rotation, dtype=torch.float64):
    """R itself: the images of the unit vectors are its columns."""
    return rotation.rotate(torch.eye(rotation.features, dtype=dtype)).T


def defect(square):
    return float((square.T @ square - torch.eye(len(square), dtype=square.dtype)).abs().max())


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_identity_when_made_and_returns_features_untouched(name):
    x = torch.randn(3, 8)
    rotation = made(name)
    assert rotation.rotate(x) is x
    assert rotation.angle == 0


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10_000), steps=st.integers(1, 12), pairs=st.integers(1, 3))
def test_it_stays_a_rotation_and_keeps_norms(name, seed, steps, pairs):
    rotation = made(name, lr=0.3)
    for step in range(steps):
        rotation.turn(*directions(pairs, 8, seed + step))
    exact, single = matrix(rotation), matrix(rotation, torch.float32)
    assert defect(exact) < 1e-12
    assert defect(single) < 5e-6
    torch.testing.assert_close(torch.linalg.det(exact).item(), 1.0, rtol=1e-9, atol=0)
    x = torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(rotation.rotate(x).norm(dim=1), x.norm(dim=1), rtol=1e-12, atol=0)
    torch.testing.assert_close(rotation.rotate(rotation.rotate(x), transposed=True), x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rotation.rotate(x), x @ exact.T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_orthogonal_in_float32_after_ten_thousand_steps(name):
    # In the others nothing adds up that could leave the rotations; `explore` runs all of them to the end.
    whole = name in ("plane", "geodesic", "cayley") or os.environ.get("HYPOTHESIS_PROFILE") == "explore"
    rotation, steps = made(name, features=4, lr=0.01, rank=3), 10_000 if whole else 500
    u, v = directions(steps, 4, seed=0)
    for step in range(steps):
        rotation.turn(u[step : step + 1], v[step : step + 1])
    single = matrix(rotation, torch.float32)
    assert defect(single) < 5e-6
    assert torch.linalg.det(single.double()).item() == pytest.approx(1, abs=5e-6)


@pytest.mark.parametrize("features", [512, 1600])
@pytest.mark.parametrize("name", ["plane", "procrustes", "cayley"])
def test_it_is_orthogonal_in_float32_for_many_features(name, features):
    rotation = made(name, features=features, lr=0.5)
    for step in range(3):
        rotation.turn(*directions(1, features, seed=step))
    assert rotation.angle > 0.1
    assert defect(matrix(rotation, torch.float32)) < 5e-6


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10_000), lr=st.floats(1e-4, 1.5), pairs=st.integers(1, 3), before=st.integers(0, 3))
def test_one_leader_step_never_lowers_the_alignment(name, seed, lr, pairs, before):
    pairs = 1 if name == "plane" else pairs
    rotation = made(name, lr=lr)
    for step in range(before):
        rotation.turn(*directions(pairs, 8, seed + 1 + step))
    u, v = directions(pairs, 8, seed)
    earlier = rotation.alignment(u, v)
    rotation.turn(u, v)
    assert rotation.alignment(u, v) >= earlier - 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_it_aligns_one_pair_completely_in_the_end(name):
    u, v = directions(1, 8, seed=3)
    if name == "subspace":  # it can only turn the first features
        u, v = (torch.nn.functional.normalize(x * (torch.arange(8) < 4), dim=1) for x in (u, v))
    rotation = made(name, lr=0.05)
    for _ in range(300):
        rotation.turn(u, v)
    assert rotation.alignment(u, v) > 1 - 2e-3
    if name in ("plane", "procrustes", "geodesic"):  # the smallest rotation that does
        assert rotation.angle == pytest.approx(math.acos(float((u * v).sum())), abs=1e-2)


@pytest.mark.parametrize("features", [16, 64, 512])
@pytest.mark.parametrize("name", NAMES)
def test_one_step_turns_by_at_most_its_rate_whatever_the_number_of_features(name, features):
    rotation = made(name, features, lr=5e-4, rank=8)
    rotation.turn(*directions(1, features, seed=features))
    assert 1e-4 < rotation.angle < 5.01e-4


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 1000), pairs=st.integers(1, 3))
def test_the_angle_from_the_identity_stays_below_its_limit(name, seed, pairs):
    rotation = made(name, lr=0.2, max_angle=0.5)
    for step in range(8):
        rotation.turn(*directions(pairs, 8, seed + (step > 4)))
    principal = torch.linalg.eigvals(matrix(rotation)).angle().abs().max()
    assert principal <= 0.5 + 1e-6
    assert rotation.angle <= 0.5 + 1e-6
    assert defect(matrix(rotation)) < 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_after_many_noisy_steps_one_step_still_turns_by_its_rate_at_most(name):
    # Found with lr · steps as a cap on the angle from the identity: later steps turned by up to a radian.
    rotation = made(name, features=16, lr=0.01, max_angle=0.5, rank=16)
    largest = 0.0
    for step in range(200):
        before = matrix(rotation)
        rotation.turn(*directions(1, 16, seed=step))
        apart = before.T @ matrix(rotation)
        largest = max(largest, float(torch.linalg.eigvals(apart).angle().abs().max()))
    assert largest < 0.01 * (1 + 1e-5)


@pytest.mark.parametrize("name", ["plane", "cayley", "geodesic", "dense_cayley", "expm"])
def test_at_the_limit_it_can_still_turn_to_other_directions(name):
    # Found with steps that were taken back at the limit: alignment 0 after a thousand of them.
    first, second, third, fourth = torch.eye(8, dtype=torch.float64)[:4].split(1)
    rotation = made(name, lr=0.02, max_angle=0.5, rank=8)
    for _ in range(60):
        rotation.turn(first, second)
    assert rotation.angle > 0.49
    for _ in range(600):
        rotation.turn(third, fourth)
    assert rotation.angle <= 0.5 + 1e-6
    assert rotation.alignment(third, fourth) > (0.3 if name != "plane" else 0.2)


def test_an_angle_does_not_creep_over_its_limit():
    rotation = made("geodesic", lr=8e-7, max_angle=1e-4)
    u, v = directions(1, 8, seed=0)
    for _ in range(500):
        rotation.turn(u, v)
    assert rotation.angle < 1e-4 * (1 + 1e-3)


@given(seed=st.integers(0, 10_000))
def test_the_angle_told_is_that_of_a_plane_rotation(seed):
    rotation = made("plane", features=5, lr=6)
    rotation.turn(*directions(1, 5, seed))
    principal = torch.linalg.eigvals(matrix(rotation)).angle().abs().max()
    assert rotation.angle == pytest.approx(float(principal), abs=1e-6)


def test_the_plane_takes_v_to_u_and_leaves_everything_orthogonal_to_both():
    u, v = directions(1, 6, seed=0)
    rotation = made("plane", features=6, lr=7)
    rotation.turn(u, v)
    torch.testing.assert_close(rotation.rotate(v), u, rtol=0, atol=1e-12)
    complement = torch.linalg.qr(torch.cat([u, v]).T, mode="complete")[0][:, 2:].T
    torch.testing.assert_close(rotation.rotate(complement), complement, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_parallel_and_opposite_directions_span_no_plane_and_are_not_turned(sign):
    u, _ = directions(1, 6, seed=0)
    rotation = made("plane", features=6, lr=7)
    rotation.turn(u, sign * u)
    assert rotation.angle == 0


def test_procrustes_is_the_best_rotation_of_the_span_by_scipy():
    from scipy.linalg import orthogonal_procrustes

    u, v = directions(4, 4, seed=6)  # the span is the whole space
    rotation = made("procrustes", features=4, lr=9)
    rotation.turn(u, v)
    best, _ = orthogonal_procrustes(v.numpy(), u.numpy())  # v best ≈ u, so R = bestᵀ
    assert torch.linalg.det(torch.from_numpy(best)) > 0, "a seed whose best orthogonal matrix is a rotation"
    torch.testing.assert_close(matrix(rotation), torch.from_numpy(best).T, rtol=0, atol=5e-3)


def test_the_low_rank_cayley_transform_is_the_dense_one():
    rotation = made("cayley", lr=0.7)
    for step in range(3):
        rotation.turn(*directions(2, 8, seed=step))
    skew = rotation.u @ rotation.v.T - rotation.v @ rotation.u.T
    identity = torch.eye(8, dtype=torch.float64)
    dense = torch.linalg.inv(identity - skew / 2) @ (identity + skew / 2)
    torch.testing.assert_close(matrix(rotation), dense, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", LEARNT)
def test_a_learnt_step_follows_the_gradient_of_the_alignment(name):
    # The first step from the identity: a small turn changes the alignment at the rate of the projected gradient.
    u, v = directions(1, 4, seed=2)
    rotation = made(name, features=4, lr=1e-4, rank=4)
    rotation.turn(u, v)
    change = rotation.alignment(u, v) - float((u * v).sum())
    steepest = math.sqrt(1 - float((u * v).sum()) ** 2) * rotation.angle  # d cos θ = sin θ dθ in the plane of u and v
    assert 0.5 * steepest < change < 1.01 * steepest


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_rotation_goes_on_bit_for_bit(name):
    rotation, u, v = made(name), *directions(6, 8, seed=4)
    for step in range(3):
        rotation.turn(u[step : step + 1], v[step : step + 1])
    other = _rotations.restore(name, rotation.settings, rotation.state_dict())
    for step in range(3, 6):
        rotation.turn(u[step : step + 1], v[step : step + 1])
        other.turn(u[step : step + 1], v[step : step + 1])
    assert torch.equal(matrix(rotation), matrix(other))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_features_are_rotated_in_float32_and_keep_their_dtype(name, dtype):
    rotation = made(name, lr=0.3)
    rotation.turn(*directions(1, 8, seed=0))
    x = torch.randn(5, 8).to(dtype)
    assert rotation.rotate(x).dtype == dtype
    torch.testing.assert_close(rotation.rotate(x), rotation.rotate(x.float()).to(dtype), rtol=0, atol=0)
