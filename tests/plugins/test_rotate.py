"""Rotations of features and of rows: gradients align, angles have limits, and nothing else changes."""

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gradhomog
from gradhomog import OptionError, TaskKey
from gradhomog.testing import jacobians
from gradhomog_plugins._rotations.geodesic import Geodesic
from gradhomog_plugins._rotations.plane import Plane
from tests.plugins.rows import normal

BOTH = ["plane", "geodesic"]
DENSE = "rotate(parameterization='geodesic', "


def learn(pipe, grads, steps=1, domains=None, targets=None):
    """Take leader steps on gradients at the head that do not depend on the rotation."""
    rows = torch.eye(len(grads), dtype=torch.float64)
    for _ in range(steps):
        pipe.combine(rows, features=grads, feature_grads=grads, domains=domains, targets=targets)


def arriving(pipe, grads, domains=None):
    """Return the gradients at the encoder, Rᵀ g̃, for gradients at the head, by autograd."""
    features = torch.zeros_like(grads, requires_grad=True)
    keys = [TaskKey(slot, domains[slot] if domains else "") for slot in range(len(grads))]
    (gradient,) = torch.autograd.grad((pipe.transform(features, keys)[-1] * grads).sum(), features)
    return gradient


def rotations_of(pipe):
    """The rotations by key."""
    homogenizer = next(iter(pipe))
    form = Plane if homogenizer.parameterization == "plane" else Geodesic
    return {key: form(tensor) for key, tensor in homogenizer.rotations.items()}


def pair_cosine(vectors):
    """Mean cosine of different tasks' pooled vectors."""
    pooled = torch.nn.functional.normalize(vectors.sum(1), dim=1)
    cosines = pooled @ pooled.T
    return float(cosines[~torch.eye(len(cosines), dtype=torch.bool)].mean())


# -- the leader --


@pytest.mark.parametrize("features", [2, 8, 64])
def test_the_encoders_gradients_align_and_the_literal_objective_turns_them_apart(features):
    # Two tasks at 60 degrees: cosine 0.5, as in the record.
    grads = torch.zeros(2, 1, features, dtype=torch.float64)
    grads[0, 0, 0], grads[1, 0, :2] = 1, torch.tensor([0.5, math.sqrt(0.75)])
    found = {}
    for variant in ("corrected", "paper"):
        pipe = gradhomog.pipeline(f"rotate(lr=0.2, max_angle=3, variant='{variant}')")
        learn(pipe, grads, steps=4)
        found[variant] = pair_cosine(arriving(pipe, grads))
    assert pair_cosine(grads) == pytest.approx(0.5)
    assert found["corrected"] == pytest.approx(1, abs=1e-5)
    assert found["paper"] < 0.2


@pytest.mark.parametrize("name", BOTH)
@given(seed=st.integers(0, 500), lr=st.floats(1e-3, 1.5))
def test_one_leader_step_lowers_no_alignment(name, seed, lr):
    grads = normal(2 + seed % 4, 3, 6, seed=seed)
    pipe = gradhomog.pipeline(f"rotate(parameterization='{name}', lr={lr}, max_angle=3)")
    before = pair_cosine(grads)
    for _ in range(3):
        learn(pipe, grads)
        after = pair_cosine(arriving(pipe, grads))
        assert after >= before - 1e-7
        before = after


def test_the_paper_variant_follows_equation_6():
    """One small step is along −∇_γ of −⟨γ_i g_i, ḡ⟩, g_i and ḡ constant."""
    grads = normal(3, 1, 4, seed=1)
    pipe = gradhomog.pipeline(DENSE + "lr=1e-4, variant='paper')")
    learn(pipe, grads)
    goal, identity = grads.sum(1).mean(0), torch.eye(4, dtype=torch.float64)
    for slot, own in enumerate(grads.sum(1)):
        skew = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
        (-(torch.matrix_exp(skew - skew.T) @ own) @ goal).backward()
        expected = -skew.grad + skew.grad.T
        found = rotations_of(pipe)[str(slot)].rotate(identity).T - identity
        cosine = (found * expected).sum() / found.norm() / expected.norm()
        assert float(cosine) == pytest.approx(1, abs=1e-3)


def test_a_task_without_gradient_is_not_turned_and_turns_no_other():
    grads = normal(3, 2, 6)
    grads[1] = 0
    pipe = gradhomog.pipeline("rotate(lr=0.5)")
    learn(pipe, grads, 2)
    assert list(rotations_of(pipe)) == ["0", "2"]  # a key without a rotation has the identity
    learn(pipe, torch.zeros_like(grads), 2)
    assert torch.isfinite(arriving(pipe, grads)).all()


# -- pooling --


def test_sample_pooling_compares_paired_queries():
    grads = normal(2, 5, 8)
    pipe = gradhomog.pipeline(DENSE + "pool='sample', lr=0.3, max_angle=3)")
    before = torch.nn.functional.cosine_similarity(grads[0], grads[1], dim=1).mean()
    learn(pipe, grads, 50)
    after = torch.nn.functional.cosine_similarity(*arriving(pipe, grads), dim=1).mean()
    assert after > before + 0.3


def test_features_of_another_shape_raise_with_advice():
    pipe = gradhomog.pipeline("rotate")
    with pytest.raises(gradhomog.DataError, match=r"\[tasks, queries, features\] with 1 tasks.*Flatten"):
        pipe.transform(torch.zeros(1, 3, 4, 5, 5), [TaskKey(0)])
    with pytest.raises(gradhomog.DataError, match="must be 2, the number of rows"):
        pipe.combine(torch.eye(2), features=torch.zeros(3, 1, 4), feature_grads=torch.zeros(3, 1, 4))


# -- keys and state --


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("variant", ["corrected", "paper"])
def test_two_tasks_of_one_domain_turn_their_rotation_once_and_in_either_order(name, variant):
    grads, found = normal(3, 2, 6), []
    for order in ([0, 1, 2], [1, 0, 2]):
        pipe = gradhomog.pipeline(f"rotate(parameterization='{name}', variant='{variant}', lr=0.1)")
        learn(pipe, grads[order], 2, domains=["a", "a", "b"])
        found.append(rotations_of(pipe))
    assert 0 < found[0]["a"].angle < 0.2 + 1e-9  # two steps of the rate, not four
    for key in ("a", "b"):
        torch.testing.assert_close(found[0][key].tensor, found[1][key].tensor, rtol=0, atol=1e-12)


# -- whole meta-steps --


def test_angles_cosines_and_the_pooled_share_of_energy_are_reported():
    grads = normal(3, 4, 6)
    pipe = gradhomog.pipeline("rotate(lr=0.2, max_angle=2)")
    learn(pipe, grads, 3)
    before, angles = arriving(pipe, grads), [rotation.angle for rotation in rotations_of(pipe).values()]
    result = pipe.homogenize(torch.eye(3, dtype=torch.float64), features=[grads] * 2, feature_grads=[grads] * 2)
    found = result.measured["rotate"]
    assert found["angle"] == angles
    assert found["feature_cosine_before"] == pytest.approx(pair_cosine(grads))
    assert found["feature_cosine_after"] == pytest.approx(pair_cosine(before))
    share = (grads.sum(1).norm(dim=1) ** 2 / (4 * grads.square().sum((1, 2)))).mean()
    assert found["pooled_energy"] == pytest.approx(float(share))


def test_each_of_several_transforms_learns_from_its_own_features():
    # Regression: rotations cancelled, because both received the gradients of the last.
    grads = normal(3, 2, 6)
    pipe = gradhomog.pipeline("rotate(lr=0.2, max_angle=3) + rotate(lr=0.2, max_angle=3)")
    keys = [TaskKey(slot) for slot in range(3)]
    with pytest.raises(OptionError, match="a sequence of 3 tensors, one before and one after each of the 2"):
        learn(pipe, grads)
    for _ in range(45):
        taps = pipe.transform(torch.zeros_like(grads, requires_grad=True), keys)
        taps = [tap if tap.requires_grad else tap.requires_grad_() for tap in taps]
        slopes = torch.autograd.grad((taps[-1] * grads).sum(), taps)
        pipe.combine(torch.eye(3, dtype=torch.float64), features=taps, feature_grads=slopes)
    assert pair_cosine(arriving(pipe, grads)) > max(0.99, pair_cosine(grads))


def test_a_task_whose_feature_gradients_are_not_finite_is_named_or_dropped():
    grads = normal(3, 2, 6)
    grads[1, 0, 0] = torch.nan
    with pytest.raises(gradhomog.NonfiniteError, match=r"task 1 is not finite.*w\.r\.t\. its features"):
        learn(gradhomog.pipeline("rotate"), grads)
    pipe = gradhomog.pipeline("rotate", nonfinite="drop")
    learn(pipe, grads)
    assert list(rotations_of(pipe)) == ["0", "2"]


both = pytest.mark.parametrize("form", [Plane, Geodesic])
seeds = st.integers(0, 10_000)


def unit_pairs(count, features, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(2, count, features, generator=generator).double(), dim=-1)


def pairs_of(form, seed, features=8):
    """One pair for a plane; one to three for a dense rotation."""
    return unit_pairs(1 if form is Plane else 1 + seed % 3, features, seed)


def after(form, seed, steps, features=8, lr=0.3, max_angle=math.pi):
    """A rotation after several steps for random unit_pairs."""
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
def test_it_aligns_one_pair_completely_by_the_smallest_rotation(form):
    u, v = unit_pairs(1, 8, seed=3)
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
    rotation = form.identity(unit_pairs(1, features, seed=features)[1])
    rotation = rotation.step(*unit_pairs(1, features, seed=features), 5e-4)
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
@pytest.mark.parametrize("sign", [1, -1])
def test_parallel_and_opposite_directions_are_not_turned(form, sign):
    u, _ = unit_pairs(1, 6, seed=0)
    assert form.identity(u).step(u, sign * u, 7).angle == pytest.approx(0, abs=1e-7)


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_rotated_in_float32_and_keep_their_dtype(form, dtype):
    rotation, x = after(form, 0, 1), torch.randn(5, 8).to(dtype)
    assert rotation.rotate(x).dtype == dtype
    assert torch.equal(rotation.rotate(x), rotation.rotate(x.float()).to(dtype))


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


def test_opposite_rows_are_unchanged():
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
