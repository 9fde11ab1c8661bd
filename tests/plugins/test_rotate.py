"""Rotation of features: what reaches the encoder aligns, and everything else stays as it is."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gradhomog
from gradhomog import OptionError, Task, TaskKey
from gradhomog_adapters.maml import MAML

EVERY = ["plane", "procrustes", "cayley", "geodesic", "subspace", "dense_cayley", "expm"]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def learn(pipe, cotangents, steps=1, domains=None, targets=None):
    """Leader steps under cotangents at the head that do not respond to the rotation."""
    rows = torch.eye(len(cotangents), dtype=torch.float64)
    for _ in range(steps):
        pipe.combine(rows, features=cotangents, feature_cotangents=cotangents, domains=domains, targets=targets)


def arriving(pipe, cotangents, domains=None):
    """What reaches the encoder of cotangents at the head: Rᵀ g̃, by automatic differentiation."""
    features = torch.zeros_like(cotangents, requires_grad=True)
    keys = [TaskKey(slot, domains[slot] if domains else "") for slot in range(len(cotangents))]
    (gradient,) = torch.autograd.grad((pipe.transform(features, keys)[-1] * cotangents).sum(), features)
    return gradient


def pair_cosine(vectors):
    """Mean cosine of different tasks' pooled vectors."""
    pooled = torch.nn.functional.normalize(vectors.sum(1), dim=1)
    cosines = pooled @ pooled.T
    return float(cosines[~torch.eye(len(cosines), dtype=torch.bool)].mean())


def tasks(count=3, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    return [Task(make(6, 4), torch.arange(6) % 3, make(9, 4), torch.arange(9) % 3, f"domain {i}") for i in range(count)]


def learner(homogenizers, dtype=torch.float32, **options):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh()).to(dtype)
    return MAML(encoder, nn.Linear(8, 3).to(dtype), homogenizers, inner_steps=2, inner_lr=0.1, **options)


# -- the leader --


@pytest.mark.parametrize("features", [2, 8, 64])
def test_the_encoders_gradients_align_and_the_literal_objective_turns_them_apart(features):
    # Two tasks at 60 degrees: cosine 0.5, as in the record.
    cotangents = torch.zeros(2, 1, features, dtype=torch.float64)
    cotangents[0, 0, 0], cotangents[1, 0, :2] = 1, torch.tensor([0.5, math.sqrt(0.75)])
    found = {}
    for variant in ("corrected", "paper"):
        pipe = gradhomog.pipeline(f"rotate(lr=0.2, max_angle=3, variant='{variant}')")
        learn(pipe, cotangents, steps=4)
        found[variant] = pair_cosine(arriving(pipe, cotangents))
    assert pair_cosine(cotangents) == pytest.approx(0.5)
    assert found["corrected"] == pytest.approx(1, abs=1e-5)
    assert found["paper"] < 0.2


@pytest.mark.parametrize("name", EVERY)
@given(seed=st.integers(0, 500), count=st.integers(2, 5), lr=st.floats(1e-3, 1.5))
def test_one_leader_step_lowers_no_alignment(name, seed, count, lr):
    cotangents = draw(count, 3, 6, seed=seed)
    pipe = gradhomog.pipeline(f"rotate(parameterization='{name}', lr={lr}, max_angle=3)")
    before = pair_cosine(cotangents)
    for _ in range(3):
        learn(pipe, cotangents)
        after = pair_cosine(arriving(pipe, cotangents))
        assert after >= before - 1e-7
        before = after


@given(seed=st.integers(0, 500), count=st.integers(1, 5))
def test_identical_tasks_stay_at_the_identity(seed, count):
    cotangents = draw(1, 3, 6, seed=seed).repeat(count, 1, 1)
    pipe = gradhomog.pipeline("rotate(lr=1)")
    learn(pipe, cotangents, steps=3)
    torch.testing.assert_close(arriving(pipe, cotangents), cotangents, rtol=0, atol=1e-6)


def test_the_literal_objective_is_followed_to_the_letter():
    """One small step of the dense parameterisation is along −∇_γ of −⟨γ_i g_i, ḡ⟩, g_i and ḡ constant."""
    cotangents = draw(3, 1, 4, seed=1)
    pipe = gradhomog.pipeline("rotate(parameterization='expm', lr=1e-4, variant='paper')")
    learn(pipe, cotangents)
    goal = cotangents.sum(1).mean(0)
    for slot, own in enumerate(cotangents.sum(1)):
        skew = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
        (-(torch.matrix_exp(skew - skew.T) @ own) @ goal).backward()
        expected = -skew.grad + skew.grad.T
        found = next(iter(pipe)).rotations[str(slot)].rotate(torch.eye(4, dtype=torch.float64)).T - torch.eye(4)
        cosine = (found * expected).sum() / found.norm() / expected.norm()
        assert float(cosine) == pytest.approx(1, abs=1e-3)


@given(seed=st.integers(0, 200))
def test_permuting_tasks_permutes_rotations_that_are_held_by_domain(seed):
    cotangents, order = draw(4, 3, 6, seed=seed), [2, 0, 3, 1]
    domains = [f"domain {i}" for i in range(4)]
    plain, permuted = (gradhomog.pipeline("rotate(lr=0.3, key='domain')") for _ in range(2))
    learn(plain, cotangents, 3, domains)
    learn(permuted, cotangents[order], 3, [domains[i] for i in order])
    torch.testing.assert_close(
        arriving(permuted, cotangents[order], [domains[i] for i in order]), arriving(plain, cotangents, domains)[order],
        rtol=1e-9, atol=1e-9,
    )  # fmt: skip


@given(exponent=st.integers(-60, 60), seed=st.integers(0, 100))
def test_a_common_factor_of_the_gradients_changes_no_rotation(exponent, seed):
    cotangents = draw(3, 3, 6, seed=seed).float()
    one, other = (gradhomog.pipeline("rotate(lr=0.3)") for _ in range(2))
    learn(one, cotangents, 2)
    learn(other, cotangents * 2.0**exponent, 2)
    assert torch.equal(arriving(one, cotangents), arriving(other, cotangents))


def test_a_task_without_gradient_is_not_turned_and_turns_nobody():
    cotangents = draw(3, 2, 6)
    cotangents[1] = 0
    pipe = gradhomog.pipeline("rotate(lr=0.5)")
    learn(pipe, cotangents, 2)
    assert next(iter(pipe)).rotations["1"].angle == 0
    learn(pipe, torch.zeros_like(cotangents), 2)
    assert torch.isfinite(arriving(pipe, cotangents)).all()


# -- pooling --


def test_class_pooling_aligns_classes_whatever_they_are_called():
    # Both tasks have the same three class directions, turned by a common rotation, under other labels.
    directions = torch.nn.functional.normalize(draw(3, 8), dim=1)
    square = torch.linalg.qr(torch.eye(8, dtype=torch.float64) + 0.15 * draw(8, 8, seed=3))[0]
    square = square * torch.sign(torch.linalg.det(square)) if torch.linalg.det(square) < 0 else square
    cotangents = torch.stack([directions, directions @ square.T])
    targets = torch.tensor([[0, 1, 2], [2, 0, 1]])
    shuffled = torch.stack([cotangents[0], cotangents[1]])
    pipe = gradhomog.pipeline("rotate(parameterization='procrustes', pool='class', lr=0.1, max_angle=3)")
    cosine = lambda x: float(torch.nn.functional.cosine_similarity(x[0], x[1], dim=1).mean())  # noqa: E731
    before = cosine(shuffled)
    learn(pipe, shuffled, 20, targets=targets)
    assert cosine(arriving(pipe, shuffled)) > max(before, 0.99)


def test_sample_pooling_compares_paired_queries():
    cotangents = draw(2, 5, 8)
    pipe = gradhomog.pipeline("rotate(parameterization='geodesic', pool='sample', lr=0.3, max_angle=3)")
    before = torch.nn.functional.cosine_similarity(cotangents[0], cotangents[1], dim=1).mean()
    learn(pipe, cotangents, 50)
    after = torch.nn.functional.cosine_similarity(*arriving(pipe, cotangents), dim=1).mean()
    assert after > before + 0.3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotate(pool='class')", "a plane has one; use parameterization='procrustes'"),
        ("rotate(pool='sample')", "follows them from batch to batch; use parameterization='geodesic'"),
        ("rotate(pool='sample', parameterization='procrustes')", "use parameterization='geodesic'"),
    ],
)
def test_a_parameterisation_that_does_not_suit_the_pooling_is_refused(text, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotate(lr=0)", "`lr` must be positive"),
        ("rotate(max_angle=4.0)", r"`max_angle` must be in \(0, π\]"),
        ("rotate(limit=0)", "`limit` must be at least 1"),
        ("rotate(rank=0)", "`rank` must be at least 1"),
    ],
)
def test_wrong_options_are_refused_by_name(text, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(text)


def test_a_state_of_another_parameterisation_is_refused_and_changes_nothing():
    plane, cayley = (gradhomog.pipeline(f"rotate(parameterization='{name}')") for name in ("plane", "cayley"))
    for pipe in (plane, cayley):
        learn(pipe, draw(2, 1, 6))
    with pytest.raises(gradhomog.ConfigError, match=r"'cayley' holds \['features', 'seed', 'u', 'v'\]; found"):
        next(iter(cayley)).load_state_dict(next(iter(plane)).state_dict())
    with pytest.raises(gradhomog.ConfigError, match="the state of Rotate must hold"):
        next(iter(plane)).load_state_dict({"generator": torch.zeros(3)})


def test_features_of_another_shape_are_refused_with_what_to_do():
    pipe = gradhomog.pipeline("rotate")
    with pytest.raises(gradhomog.DataError, match=r"\[tasks, queries, features\] with 1 tasks.*Flatten"):
        pipe.transform(torch.zeros(1, 3, 4, 5, 5), [TaskKey(0)])
    with pytest.raises(gradhomog.DataError, match="must have the 2 tasks of the rows"):
        pipe.combine(torch.eye(2), features=torch.zeros(3, 1, 4), feature_cotangents=torch.zeros(3, 1, 4))


def test_another_number_of_features_is_refused():
    pipe = gradhomog.pipeline("rotate")
    learn(pipe, draw(2, 1, 6))
    with pytest.raises(gradhomog.DataError, match="must keep their number, 6; got 5"):
        pipe.transform(torch.zeros(1, 1, 5), [TaskKey(0)])


# -- keys and state --


def test_new_domains_start_at_the_identity_and_the_least_recently_used_leave():
    pipe = gradhomog.pipeline("rotate(key='domain', lr=0.3, limit=3)")
    rotations = next(iter(pipe)).rotations
    learn(pipe, draw(2, 1, 6), domains=["a", "b"])
    learn(pipe, draw(2, 1, 6, seed=1), domains=["b", "c"])
    assert list(rotations) == ["a", "b", "c"]
    learn(pipe, draw(2, 1, 6, seed=2), domains=["d", "b"])
    assert list(rotations) == ["c", "d", "b"]
    x = torch.ones(1, 1, 6)
    assert pipe.transform(x, [TaskKey(0, "a")])[-1] is x


def test_two_tasks_of_one_domain_turn_their_rotation_together():
    cotangents = draw(3, 2, 6)
    pipe = gradhomog.pipeline("rotate(key='domain', lr=0.3)")
    learn(pipe, cotangents, domains=["a", "a", "b"])
    rotations = next(iter(pipe)).rotations
    together = cotangents[:2].sum(1)
    u = torch.nn.functional.normalize(torch.nn.functional.normalize(together, dim=1).sum(0), dim=0)
    assert rotations["a"].alignment(u[None], rotations["a"].follower_v) > float(u @ rotations["a"].follower_v[0])


def test_rotations_of_the_batch_do_not_leave_whatever_the_limit():
    pipe = gradhomog.pipeline("rotate(limit=1, lr=0.3)")
    learn(pipe, draw(3, 1, 6), 2)
    assert list(next(iter(pipe)).rotations) == ["0", "1", "2"]


def test_classes_keep_their_names_from_step_to_step():
    cotangents, targets = draw(2, 3, 8), torch.tensor([[0, 1, 2], [0, 1, 2]])
    text = "rotate(parameterization='procrustes', pool='class', lr=0.05, max_angle=3)"
    plain, renamed = gradhomog.pipeline(text), gradhomog.pipeline(text)
    for step in range(10):
        learn(plain, cotangents, targets=targets)
        learn(renamed, cotangents, targets=(targets + step) % 3)
    torch.testing.assert_close(arriving(renamed, cotangents), arriving(plain, cotangents), rtol=1e-6, atol=1e-8)


def test_a_batch_without_one_of_the_classes_turns_nothing_in_closed_form():
    cotangents, targets = draw(2, 3, 8), torch.tensor([[0, 1, 2], [0, 1, 1]])
    pipe = gradhomog.pipeline("rotate(parameterization='procrustes', pool='class', lr=0.05)")
    learn(pipe, cotangents, targets=targets)
    assert next(iter(pipe)).rotations["1"].angle == 0


@pytest.mark.parametrize("name", EVERY)
def test_training_goes_on_bit_for_bit_from_a_saved_state(name):
    text = f"rotate(parameterization='{name}', lr=0.2)"
    model = learner(text)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in range(3):
        model.step(tasks(seed=seed), outer)
    saved = copy.deepcopy(model.state_dict())
    fresh = learner(text)
    fresh.load_state_dict(saved)
    model.step(tasks(seed=3), outer)
    assert any(not torch.equal(saved["head"][key], value) for key, value in model.state_dict()["head"].items())
    fresh.step(tasks(seed=3), torch.optim.SGD(fresh.parameters(), lr=0.1))
    for part in ("encoder", "head"):
        for key, value in model.state_dict()[part].items():
            assert torch.equal(fresh.state_dict()[part][key], value)


# -- whole meta-steps --


def test_the_first_step_is_the_plain_learners():
    plain, rotated = learner(None, dtype=torch.float64), learner("rotate(lr=0.5)", dtype=torch.float64)
    for model in (plain, rotated):
        model.step(tasks(dtype=torch.float64), torch.optim.SGD(model.parameters(), lr=0.1))
    for key, value in plain.state_dict()["encoder"].items():
        torch.testing.assert_close(rotated.state_dict()["encoder"][key], value, rtol=1e-14, atol=1e-15)


def test_rows_are_those_of_the_rotated_query_loss():
    model = learner("rotate(lr=0.5)", dtype=torch.float64)
    batch = tasks(dtype=torch.float64)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model.step(batch, outer)
    rotations = next(iter(model.homogenizers)).rotations
    found = model.rows(batch).jacobian
    for slot, task in enumerate(batch):
        matrix = rotations[str(slot)].rotate(torch.eye(8, dtype=torch.float64)).T
        assert rotations[str(slot)].angle > 0.05
        names = [name for name, _ in nn.ModuleDict({"encoder": model.encoder, "head": model.head}).named_parameters()]
        meta = [model.encoder[0].weight, model.encoder[0].bias, model.head.weight, model.head.bias]
        w = meta
        for _ in range(2):
            outputs = torch.tanh(task.support_x @ w[0].T + w[1]) @ w[2].T + w[3]
            slopes = torch.autograd.grad(nn.functional.cross_entropy(outputs, task.support_y), w, create_graph=True)
            w = [p - 0.1 * g for p, g in zip(w, slopes, strict=True)]
        features = torch.tanh(task.query_x @ w[0].T + w[1]) @ matrix.T
        loss = nn.functional.cross_entropy(features @ w[2].T + w[3], task.query_y)
        for name, expected in zip(names, torch.autograd.grad(loss, meta), strict=True):
            torch.testing.assert_close(found[name][slot], expected, rtol=1e-9, atol=1e-12)


def test_nothing_is_rotated_at_meta_test():
    model = learner("rotate(lr=0.5)")
    for _ in range(3):
        model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    bare = learner(None)
    bare.encoder.load_state_dict(model.encoder.state_dict())
    bare.head.load_state_dict(model.head.state_dict())
    task = tasks(seed=9)[0]
    inputs = task.support_x, task.support_y, task.query_x
    assert torch.equal(model.predict(*inputs), bare.predict(*inputs))


def test_angles_cosines_and_the_pooled_share_are_told():
    cotangents = draw(3, 4, 6)
    pipe = gradhomog.pipeline("rotate(lr=0.2, max_angle=2)")
    learn(pipe, cotangents, 3)
    before = arriving(pipe, cotangents)
    angles = [rotation.angle for rotation in next(iter(pipe)).rotations.values()]
    learn(pipe, cotangents)
    told = next(iter(pipe)).measured()
    assert told["angle"] == angles
    assert told["feature_cosine_before"] == pytest.approx(pair_cosine(cotangents))
    assert told["feature_cosine_after"] == pytest.approx(pair_cosine(before))
    share = (cotangents.sum(1).norm(dim=1) ** 2 / (4 * cotangents.square().sum((1, 2)))).mean()
    assert told["pooled_energy"] == pytest.approx(float(share))


def test_several_transforms_learn_from_what_each_of_them_shows():
    # Found as rotations that cancelled: both had been given the cotangents of the last.
    cotangents = draw(3, 2, 6)
    pipe = gradhomog.pipeline("rotate(lr=0.2, max_angle=3) + rotate(lr=0.2, max_angle=3)")
    keys = [TaskKey(slot) for slot in range(3)]
    with pytest.raises(OptionError, match="a sequence of 3 tensors, one before and one after each of the 2"):
        learn(pipe, cotangents)
    for _ in range(12):
        taps = pipe.transform(torch.zeros_like(cotangents, requires_grad=True), keys)
        taps = [tap if tap.requires_grad else tap.requires_grad_() for tap in taps]
        slopes = torch.autograd.grad((taps[-1] * cotangents).sum(), taps)
        pipe.combine(torch.eye(3, dtype=torch.float64), features=taps, feature_cotangents=slopes)
    assert pair_cosine(arriving(pipe, cotangents)) > max(0.99, pair_cosine(cotangents))


def test_a_task_whose_cotangents_are_not_finite_is_named_or_dropped():
    cotangents = draw(3, 2, 6)
    cotangents[1, 0, 0] = torch.nan
    with pytest.raises(gradhomog.NonfiniteError, match=r"task 1 is not finite.*by its features"):
        learn(gradhomog.pipeline("rotate"), cotangents)
    pipe = gradhomog.pipeline("rotate", nonfinite="drop")
    learn(pipe, cotangents)
    assert list(next(iter(pipe)).rotations) == ["0", "2"]
