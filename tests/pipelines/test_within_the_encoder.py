"""Stages within the encoder: hooks live as long as their context, and each transform learns from its own input."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import Homogenizer, PluginRunError
from gradhomog.evidence import TaskKey
from tests.pipelines.members import ROWS, Noted, faulty


def test_attached_changes_the_encoder_within_the_context_only_even_if_it_raises():
    encoder = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    plain = encoder(x)
    pipe = gradhomog.pipeline([Noted(), Noted()])

    def use_and_fail():
        with pipe.attached(encoder):
            torch.testing.assert_close(encoder(x), plain + 2)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        use_and_fail()
    assert torch.equal(encoder(x), plain)


class Single(Homogenizer):
    def attach(self, encoder):
        return encoder.register_forward_hook(lambda module, inputs, output: output + 1)


def test_a_single_handle_is_as_good_as_a_list_of_them():
    encoder = nn.Linear(2, 2)
    with gradhomog.pipeline([Single()]).attached(encoder):
        assert len(encoder._forward_hooks) == 1
    assert not encoder._forward_hooks


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda self, encoder: [1], "handles with a method `remove`; got int"),
        (lambda self, encoder: (1 / 0 for _ in "x"), "raised in `attach`: ZeroDivisionError"),
    ],
)
def test_what_attach_returns_is_checked_and_named(function, message):
    pipe = gradhomog.pipeline([Noted(), faulty("attach", function)])
    encoder = nn.Linear(2, 2)
    with pytest.raises(PluginRunError, match=message), pipe.attached(encoder):
        pass
    assert not encoder._forward_hooks


class Shifted(Homogenizer):
    def __init__(self, amount):
        self.amount = amount

    def transform(self, features, keys):
        return features + self.amount

    def update(self, evidence):
        self.seen = (evidence.features.clone(), evidence.feature_cotangents.clone())


def test_each_transform_learns_from_its_own_input_and_the_cotangent_of_its_own_output():
    first, second = Shifted(1.0), Shifted(10.0)
    pipe = gradhomog.pipeline([first, second])
    taps = pipe.transform(torch.zeros(2, 1, 3), [TaskKey(0), TaskKey(1)])
    assert [float(tap.mean()) for tap in taps] == [0.0, 1.0, 11.0]
    cotangents = [torch.full((2, 1, 3), float(i)) for i in range(3)]
    pipe.homogenize(ROWS, features=taps, feature_cotangents=cotangents)
    assert (float(first.seen[0].mean()), float(first.seen[1].mean())) == (0.0, 1.0)
    assert (float(second.seen[0].mean()), float(second.seen[1].mean())) == (1.0, 2.0)
