"""Angles of RotoGrad's steps: rates, decay, steps that are too long, repeated inputs, common factors, keys."""

import math

import pytest
import torch
from torch import nn

import gradhomog
from tests.plugins.rotograd.steps import keys_of, learn, matrices, measured
from tests.plugins.rows import normal


def test_the_smaller_of_two_gradients_turns_more_slowly():
    grads = torch.tensor([[[9.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]], dtype=torch.float64)
    pipe = gradhomog.pipeline("rotograd(lr=0.01)")
    learn(pipe, grads)
    large, small = measured(pipe, grads)["angle"]
    assert large / small == pytest.approx(9, rel=1e-2)
    assert large == pytest.approx(0.01 * 9 / 5 * 0.5, rel=1e-2)  # lr · ‖G‖/mean · |a × v|, v = (1/2, 1/2)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3)])
def test_repeated_inputs_and_positions_of_maps_make_no_step_longer(shape):
    # The published code sums over the inputs of vectors and averages over those of maps: a factor of the batch.
    grads = normal(2, 4, 3)
    copies = math.prod(shape)
    maps = grads[..., None, None].expand(*grads.shape, *shape)
    found = []
    for given_ in (grads, grads.repeat(1, copies, 1) / copies, maps / copies, 10 * maps):
        pipe = gradhomog.pipeline("rotograd(lr=0.3)")
        learn(pipe, given_, 3)
        found.append(matrices(pipe, 3, 2))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-12)
    features = normal(2, 4, 3, *shape)
    expected = torch.einsum("tij,tqjhw->tqihw", found[2], features)
    torch.testing.assert_close(pipe.transform(features, keys_of(2))[-1], expected)


def test_only_the_first_features_are_rotated():
    grads = normal(2, 8, 6)
    pipe = gradhomog.pipeline("rotograd(size=3, lr=0.5)")
    learn(pipe, grads, 3)
    features = normal(2, 5, 6, seed=1)
    rotated = pipe.transform(features, keys_of(2))[-1]
    assert torch.equal(rotated[..., 3:], features[..., 3:])
    assert float((rotated - features)[..., :3].norm()) > 0.1
    torch.testing.assert_close(rotated.norm(dim=-1), features.norm(dim=-1))
    assert next(iter(pipe)).rotations["0"].shape == (3, 3)


def test_rates_decay_with_the_steps_of_each_rotation():
    grads = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    pipe = gradhomog.pipeline("rotograd(lr=1e-4, decay=0.5)")
    learn(pipe, grads, 20)  # 1 + 1/2 + 1/4 + …, for small rotations
    angle = float(torch.atan2(matrices(pipe, 2, 2)[0, 1, 0], matrices(pipe, 2, 2)[0, 0, 0]))
    assert abs(angle) == pytest.approx(2 * 1e-4 * 0.5, rel=1e-3)


def test_a_step_that_is_too_long_is_halved_until_it_raises_the_alignment():
    grads = normal(2, 1, 5)
    pipe = gradhomog.pipeline("rotograd(lr=1e6, decay=1)")
    cosine = -1.0
    for _ in range(10):
        after = measured(pipe, grads)["feature_cosine_after"]
        assert after >= cosine - 1e-9
        cosine = after
    assert cosine > nn.functional.cosine_similarity(*grads.flatten(1), dim=0) + 0.1


def test_two_tasks_of_one_domain_turn_it_once_by_their_mean_and_in_either_order():
    grads, found = normal(3, 2, 4), []
    for order in ([0, 1, 2], [1, 0, 2]):
        pipe = gradhomog.pipeline("rotograd(lr=0.1, decay=0.5)")
        learn(pipe, grads[order], 2, domains=["a", "a", "b"])
        assert next(iter(pipe)).turns == {"a": 2, "b": 2}
        found.append(matrices(pipe, 4, 2, ["a", "b"]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)
    twice, once = (gradhomog.pipeline("rotograd(pool='task')") for _ in range(2))
    learn(twice, grads[[0, 0, 1, 1]], domains=["a", "a", "b", "b"])
    learn(once, grads[:2], domains=["a", "b"])
    torch.testing.assert_close(matrices(twice, 4, 2, ["a", "b"]), matrices(once, 4, 2, ["a", "b"]), rtol=0, atol=1e-12)
