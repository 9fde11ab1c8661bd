"""Learners without an inner loop: engines agree, rows are derivatives, homogenizers attach, state is unchanged."""

from __future__ import annotations

import io
from functools import partial

import pytest
import torch
from torch import nn

from gradhomog import DataError, Homogenizer, NonfiniteError, OptionError, Task, TaskBatch
from gradhomog_adapters.baseline import Baseline
from gradhomog_adapters.baseline_pp import BaselinePP
from gradhomog_adapters.metaoptnet import MetaOptNet
from gradhomog_adapters.protonet import ProtoNet
from gradhomog_adapters.relationnet import RelationNet
from tests.adapters import checks

FITTED = {"classes": 7, "test_epochs": 3}
MAPS = {"maps": True, "input_shape": [1, 6, 6]}
VECTOR_LEARNERS = {
    "protonet": ProtoNet,
    "metaoptnet": partial(MetaOptNet, regularization=2.0),
    "relationnet": RelationNet,
    "relationnet softmax": partial(RelationNet, objective="softmax", hidden=9),
    "baseline": partial(Baseline, **FITTED),
    "baseline_pp": partial(BaselinePP, **FITTED),
}
IMAGE_LEARNERS = {
    "protonet": ProtoNet,
    "metaoptnet": MetaOptNet,
    "relationnet": partial(RelationNet, **MAPS),
    "baseline": partial(Baseline, **FITTED, input_shape=[1, 6, 6]),
}
METRIC_LEARNERS = [name for name in VECTOR_LEARNERS if "base" not in name]


def make_vector_learner(name, homogenizers=None, norm=False, seed=0, **options):
    return VECTOR_LEARNERS[name](*checks.networks(norm, seed), homogenizers, **options)


def make_image_learner(name, homogenizers=None, norm=False, seed=0, **options):
    return IMAGE_LEARNERS[name](*checks.image_networks(norm, seed), homogenizers, **options)


def vector_tasks(name, count=3, **options):
    return checks.tasks(count, classes=7 if "base" in name else None, **options)


def image_tasks(name, count=3):
    return vector_tasks(name, count, shape=(1, 6, 6))


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_both_engines_give_the_same_rows(name, norm):
    batch = vector_tasks(name)
    loop, vmap = (
        VECTOR_LEARNERS[name](*checks.networks(True), engine=engine, norm=norm) for engine in ("loop", "vmap")
    )
    checks.assert_rows_equal(loop.rows(batch), vmap.rows(batch))


@pytest.mark.parametrize("name", IMAGE_LEARNERS)
def test_both_engines_give_the_same_rows_on_maps(name):
    batch = image_tasks(name)
    loop, vmap = (
        IMAGE_LEARNERS[name](*checks.image_networks(True), engine=engine, norm="support") for engine in ("loop", "vmap")
    )
    checks.assert_rows_equal(loop.rows(batch), vmap.rows(batch))


@pytest.mark.parametrize("norm", ["batch", "support"])
@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_rows_are_the_derivatives_of_the_losses(name, norm):
    learner = VECTOR_LEARNERS[name](*checks.networks(True), norm=norm)
    checks.assert_rows_match_finite_differences(learner, vector_tasks(name))


@pytest.mark.parametrize("norm", ["batch", "support"])
@pytest.mark.parametrize("name", IMAGE_LEARNERS)
def test_rows_on_maps_are_the_derivatives_of_the_losses(name, norm):
    learner = IMAGE_LEARNERS[name](*checks.image_networks(True), norm=norm)
    checks.assert_rows_match_finite_differences(learner, image_tasks(name))


@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_rows_evaluation_and_prediction_change_nothing(name):
    checks.assert_learner_unchanged(make_vector_learner(name, norm=True), vector_tasks(name))


@pytest.mark.parametrize("name", IMAGE_LEARNERS)
def test_rows_evaluation_and_prediction_on_maps_change_nothing(name):
    checks.assert_learner_unchanged(make_image_learner(name, norm=True), image_tasks(name))


@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_homogenizers_act_in_training_only(name):
    checks.assert_homogenizers_act_in_training_only(partial(make_vector_learner, name), vector_tasks(name))


@pytest.mark.parametrize("name", IMAGE_LEARNERS)
def test_homogenizers_on_maps_act_in_training_only(name):
    checks.assert_homogenizers_act_in_training_only(partial(make_image_learner, name), image_tasks(name))


@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_a_saved_and_loaded_learner_continues_bit_for_bit(name):
    batch, learner, fresh = (
        vector_tasks(name),
        make_vector_learner(name, norm=True),
        make_vector_learner(name, norm=True, seed=1),
    )
    learner.step(batch, torch.optim.Adam(learner.parameters(), lr=0.05))
    file = io.BytesIO()
    torch.save(learner.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    one, two = learner.rows(batch), fresh.rows(batch)
    assert all(torch.equal(block, two.jacobian[n]) for n, block in one.jacobian.items())
    assert learner.evaluate(batch) == fresh.evaluate(batch)


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_training_raises_the_scores_of_unseen_queries(name):
    learner = make_vector_learner(name)
    outer = torch.optim.Adam(learner.parameters(), lr=0.02)
    batch = vector_tasks(name, shots=5)
    before = learner.rows(batch).losses.mean()
    for _ in range(30):
        learner.step(batch, outer)
    assert learner.rows(batch).losses.mean() < 0.8 * before


@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_the_head_is_not_trained(name):
    rows = make_vector_learner(name).rows(vector_tasks(name)).jacobian
    assert not rows["head.weight"].any()
    assert rows["encoder.0.weight"].abs().amax(dim=(1, 2)).min() > 0


@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_a_frozen_encoder_is_a_constant(name):
    encoder, head = checks.networks()
    rows = VECTOR_LEARNERS[name](encoder.requires_grad_(False), head).rows(vector_tasks(name))
    assert not any(key.startswith("encoder.") for key in rows.jacobian)
    assert rows.feature_grads[0].abs().max() > 0


@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_bfloat16_rows_are_close_to_those_of_float32(name):
    batch = vector_tasks(name)
    batch = TaskBatch(
        batch.support_x.float(), batch.support_y, batch.query_x.float(), batch.query_y, batch.domains, batch.classes
    )
    rows = []
    for autocast in (None, "bfloat16"):
        encoder, head = checks.networks()
        rows.append(VECTOR_LEARNERS[name](encoder.float(), head.float(), autocast=autocast).rows(batch))
    torch.testing.assert_close(rows[1].losses, rows[0].losses, rtol=0.05, atol=0.05)
    assert all(block.isfinite().all() for block in rows[1].jacobian.values())


@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_regression_raises(name):
    x = torch.zeros(2, 3, 4, dtype=torch.float64)
    batch = TaskBatch(x, x[..., :1], x, x[..., :1])
    learner = make_vector_learner(name)
    for call in (learner.rows, learner.evaluate):
        with pytest.raises(DataError, match="supports classification only"):
            call(batch)


class LinearTransform(Homogenizer):
    """Query features times a matrix."""

    def __init__(self, matrix):
        self.matrix = matrix

    def transform(self, features, keys):
        return features @ self.matrix.T


def rotation(size):
    generator = torch.Generator().manual_seed(3)
    return torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]


@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_the_identity_as_a_transform_gives_the_plain_rows(name):
    batch = vector_tasks(name)
    turned = make_vector_learner(name, [LinearTransform(torch.eye(5, dtype=torch.float64))]).rows(batch)
    plain = make_vector_learner(name).rows(batch)
    torch.testing.assert_close(turned.losses, plain.losses)
    for key, block in plain.jacobian.items():
        torch.testing.assert_close(turned.jacobian[key], block)


@pytest.mark.parametrize("name", ["protonet", "metaoptnet"])
def test_queries_are_rotated_and_supports_are_not(name):
    # Rotating queries by R is equivalent to rotating supports by its transpose; rotating both has no effect.
    batch, turn = vector_tasks(name), rotation(5)
    turned = make_vector_learner(name, [LinearTransform(turn)]).rows(batch)
    plain = make_vector_learner(name).rows(batch)
    assert (turned.losses - plain.losses).abs().min() > 1e-3

    class Both(nn.Module):
        def __init__(self, encoder, matrix):
            super().__init__()
            self.encoder = encoder
            self.register_buffer("matrix", matrix)

        def forward(self, x):
            return self.encoder(x) @ self.matrix.T

    encoder, head = checks.networks()
    both = VECTOR_LEARNERS[name](Both(encoder, turn), head).rows(batch)
    torch.testing.assert_close(both.losses, plain.losses)
    # Supports are rotated by the transpose of R; queries are rotated by the transpose and then by R.
    back = VECTOR_LEARNERS[name](Both(encoder, turn.T), head, [LinearTransform(turn)]).rows(batch)
    torch.testing.assert_close(back.losses, turned.losses)


@pytest.mark.parametrize("name", METRIC_LEARNERS)
def test_a_class_without_supports_has_no_effect(name):
    x, y = torch.randn(4, 4, dtype=torch.float64), torch.tensor([0, 2, 0, 2])
    learner = make_vector_learner(name)
    outputs = learner.predict(x, y, torch.randn(5, 4, dtype=torch.float64))
    assert outputs[:, 1].tolist() == [0.0 if name == "relationnet" else -torch.inf] * 5
    rows = learner.rows([Task(x, y, x, y)])
    assert all(block.isfinite().all() for block in rows.jacobian.values())
    assert rows.losses.isfinite().all()


@pytest.mark.parametrize("name", ["protonet", "metaoptnet", "relationnet softmax"])
def test_a_query_of_a_class_without_supports_raises_as_not_finite(name):
    x, y = torch.randn(4, 4, dtype=torch.float64), torch.tensor([0, 2, 0, 2])
    learner = make_vector_learner(name)
    with pytest.raises(NonfiniteError):
        learner.step([Task(x, y, x, torch.tensor([0, 1, 2, 0]))], torch.optim.SGD(learner.parameters(), lr=0.1))


@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_tasks_of_one_class_or_of_equal_images_give_finite_rows_and_scores(name):
    x, y = torch.randn(4, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 2])
    ids = torch.tensor([4, 5, 6]) if "base" in name else None
    same = x[:1].expand(4, 4)
    batch = TaskBatch.stack([Task(x, 0 * y, x, 0 * y, classes=ids), Task(same, y, same, y, classes=ids)])
    learner = make_vector_learner(name)
    rows = learner.rows(batch)
    assert all(block.isfinite().all() for block in rows.jacobian.values())
    assert rows.losses.isfinite().all()
    assert all(map(torch.isfinite, map(torch.tensor, learner.evaluate(batch).losses)))


@pytest.mark.parametrize("name", VECTOR_LEARNERS)
def test_support_statistics_make_queries_independent_of_each_other(name):
    task = vector_tasks(name)[0]
    found = {}
    for norm in ("batch", "support"):
        learner = VECTOR_LEARNERS[name](*checks.networks(True), norm=norm)
        together = learner.predict(task.support_x, task.support_y, task.query_x)
        halves = [learner.predict(task.support_x, task.support_y, part) for part in task.query_x.split(3)]
        found[norm] = torch.allclose(together, torch.cat(halves))
    assert found == {"batch": False, "support": True}


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (MetaOptNet, {"regularization": 0.0}, "`regularization` must be a number > 0"),
        (MetaOptNet, {"scale": 0.0}, "`scale` must be a finite number other than 0"),
        (RelationNet, {"hidden": 0}, "`hidden` must be an integer ≥ 1"),
        (RelationNet, {"objective": "hinge"}, '`objective` must be one of "mse", "softmax"'),
        (RelationNet, {"maps": True}, r"`maps` requires an encoder that returns maps.*\[5\] according to the head"),
        (RelationNet, {"input_shape": [3]}, r"`input_shape` must be the shape of one input.*does not accept \[3\]"),
        (RelationNet, {"input_shape": [0]}, "`input_shape` must contain positive integers"),
        (Baseline, {"classes": 0}, "`classes` must be an integer ≥ 1 or none; got 0"),
        (Baseline, {"test_lr": float("nan")}, "`test_lr` must be a number > 0"),
        (Baseline, {"test_epochs": -1}, "`test_epochs` must be an integer ≥ 0"),
        (BaselinePP, {"test_batch": 0}, "`test_batch` must be an integer ≥ 1"),
        (BaselinePP, {"scale": -1.0}, "`scale` must be a number > 0"),
    ],
)
def test_invalid_options_raise(make, options, message):
    with pytest.raises(OptionError, match=message):
        make(*checks.networks(), **options)


def test_a_head_without_a_linear_layer_requires_the_input_shape():
    encoder = checks.networks()[0]
    with pytest.raises(OptionError, match=r"`input_shape` must be given.*no torch\.nn\.Linear"):
        RelationNet(encoder, nn.Identity())
    assert RelationNet(encoder, nn.Identity(), input_shape=[4]).shape == (5,)
