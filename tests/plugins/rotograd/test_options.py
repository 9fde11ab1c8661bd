"""RotoGrad's halves, options and shapes."""

import pytest
import torch

import gradhomog
from gradhomog import DataError
from tests.plugins.rotograd.steps import keys_of, learn, matrices
from tests.plugins.rows import normal


def test_each_half_can_be_switched_off():
    grads = torch.tensor([[[3.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    identity = torch.eye(2, dtype=torch.float64).repeat(2, 1, 1)
    for options, weights, turned in (
        ("magnitude=false", [1, 1], True), ("rotation=false", [2 / 3, 2], False),
        ("rotation=false, magnitude=false", [1, 1], False), ("magnitude=false, scale='paper'", [2, 2], True),
    ):  # fmt: skip
        pipe = gradhomog.pipeline(f"rotograd({options})")
        assert learn(pipe, grads).tolist() == pytest.approx(weights)
        assert (not torch.equal(matrices(pipe, 2, 2), identity)) is turned
    assert torch.equal(
        gradhomog.pipeline("rotograd(rotation=false, magnitude=false)").combine(torch.eye(2)), torch.eye(2).mean(0)
    )  # and needs no features


def test_features_that_do_not_fit_raise():
    with pytest.raises(DataError, match=r"\[tasks, queries, features\] or .* with 2 tasks; got \(2, 3\)"):
        gradhomog.pipeline("rotograd").transform(torch.zeros(2, 3), keys_of(2))
    with pytest.raises(DataError, match="`size` must be at most the number of features, 3; got 4"):
        learn(gradhomog.pipeline("rotograd(size=4)"), normal(2, 1, 3))
    pipe = gradhomog.pipeline("rotograd")
    learn(pipe, normal(2, 1, 3))
    with pytest.raises(DataError, match="rotograd: the number of features must not change, 3; got 4"):
        pipe.transform(torch.zeros(2, 1, 4), keys_of(2))
