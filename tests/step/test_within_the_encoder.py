"""Stages in the encoder: hooks exist only within their context; each `transform` receives the previous features."""

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import Homogenizer, PluginRunError
from gradhomog.step.step import TaskKey
from tests.step.members import ROWS, Plus, faulty


def test_attached_changes_the_encoder_only_within_the_context_even_if_it_raises():
    encoder = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    plain = encoder(x)
    pipe = gradhomog.pipeline([Plus(), Plus()])

    def use_and_fail():
        with pipe.attached(encoder):
            torch.testing.assert_close(encoder(x), plain + 2)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        use_and_fail()
    assert torch.equal(encoder(x), plain)


def left_behind(self, encoder):
    encoder.register_forward_hook(lambda module, inputs, output: 5 * output)
    encoder[0].register_forward_pre_hook(lambda module, inputs: None)
    return [encoder.register_forward_hook(lambda module, inputs, output: output + 1)]


def hooks(encoder):
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [len(getattr(module, table)) for module in encoder.modules() for table in tables]


def test_a_hook_without_a_handle_is_removed_and_reported():
    encoder = nn.Sequential(nn.Linear(2, 2))
    own = encoder.register_forward_hook(lambda module, inputs, output: output)  # a hook of the user
    before = hooks(encoder)
    pipe = gradhomog.pipeline([Plus(), faulty("attach", left_behind), Plus()])
    message = r"Faulty must return from `attach` a handle for every hook; 2 hooks remained on the encoder"
    with pytest.raises(PluginRunError, match=message), pipe.attached(encoder):
        pass
    assert hooks(encoder) == before
    own.remove()


class Shifted(Homogenizer):
    def __init__(self, amount):
        self.amount = amount

    def transform(self, features, keys):
        return features + self.amount

    def update(self, step):
        self.seen = (float(step.features.mean()), float(step.feature_grads.mean()))
        return {}


def test_update_receives_the_input_of_its_transform_and_the_gradient_of_its_output():
    first, second = Shifted(1.0), Shifted(10.0)
    pipe = gradhomog.pipeline([first, second])
    taps = pipe.transform(torch.zeros(2, 1, 3), [TaskKey(0), TaskKey(1)])
    assert [float(tap.mean()) for tap in taps] == [0.0, 1.0, 11.0]
    grads = [torch.full((2, 1, 3), float(i)) for i in range(3)]
    pipe.homogenize(ROWS, features=taps, feature_grads=grads)
    assert first.seen == (0.0, 1.0)
    assert second.seen == (1.0, 2.0)
