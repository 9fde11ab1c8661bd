"""Meta-transfer learning: scales and shifts against a hand-written loop, and the end of pre-training."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy

from gradhomog import OptionError
from gradhomog_adapters.anil import anil
from gradhomog_adapters.baseline import Baseline
from gradhomog_adapters.mtl import MTL
from tests.adapters import checks
from tests.adapters.checks import CLASSES, class_tasks


def make(homogenizers=None, normalized=False, **options):
    return MTL(*checks.image_networks(normalized, flatten=True), homogenizers, **{"inner_steps": 3, **options})


def perturb(learner):
    """Change scales and shifts from their initial values."""
    modules = learner.extra_modules
    checks.perturb([*modules["scales"].parameters(), *modules["shifts"].parameters()], 0.3)


# -- scales and shifts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_order", [False, True])
def test_rows_are_those_of_a_loop_with_scaled_and_shifted_convolutions(first_order):
    learner = make(inner_lr=0.1, first_order=first_order)
    perturb(learner)
    # The head is one linear layer, in a Sequential.
    named = {name.replace("head.0.", "head."): parameter for name, parameter in learner.named_parameters().items()}
    kernel, bias = (p.detach() for p in learner.encoder[0].parameters())

    def encode(x):
        scale, shift = named["learner.scales.encoder.0.weight"], named["learner.shifts.encoder.0.bias"]
        assert scale.shape == (2, 1, 1, 1)
        return torch.tanh(conv2d(x, kernel * scale, bias + shift)).flatten(1)

    def loss(task):
        support, query = encode(task.support_x), encode(task.query_x)
        weight, offset = named["head.weight"], named["head.bias"]
        if first_order:
            support = support.detach()
        for _ in range(3):
            value = cross_entropy(support @ weight.T + offset, task.support_y)
            steps = torch.autograd.grad(value, (weight, offset), create_graph=not first_order)
            weight, offset = weight - 0.1 * steps[0], offset - 0.1 * steps[1]
        return cross_entropy(query @ weight.T + offset, task.query_y)

    checks.assert_rows_match_autograd(learner, class_tasks(), loss)


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
def test_initially_the_network_is_the_frozen_one(norm):
    options = {"inner_steps": 3, "test_steps": 5, "norm": norm}
    learner, reference = make(normalized=True, **options), anil(*checks.image_networks(True, flatten=True), **options)
    ours, theirs = learner.rows(class_tasks()), reference.rows(class_tasks())
    torch.testing.assert_close(ours.losses, theirs.losses, rtol=1e-13, atol=0)
    for name in ("head.0.weight", "head.0.bias"):
        torch.testing.assert_close(ours.jacobian[name], theirs.jacobian[name], rtol=1e-10, atol=1e-14)
    assert learner.evaluate(class_tasks()).losses == pytest.approx(reference.evaluate(class_tasks()).losses, rel=1e-12)


@pytest.mark.parametrize(
    ("layer", "scale", "shift"),
    [
        (nn.Linear(4, 3), (3, 4), (3,)),
        (nn.Conv1d(4, 6, 1, groups=2), (6, 2, 1), (6,)),
        (nn.ConvTranspose2d(4, 6, 2), (4, 6, 1, 1), (6,)),
        (nn.Conv2d(4, 6, 2, bias=False), (6, 4, 1, 1), None),
    ],
)
def test_there_is_a_scale_for_each_pair_of_channels_and_a_shift_for_each_bias(layer, scale, shift):
    learner = MTL(nn.Sequential(layer), nn.Linear(3, 2))
    found = {n: tuple(p.shape) for n, p in learner.named_parameters().items() if n.startswith("learner.")}
    expected = {"learner.scales.encoder.0.weight": scale, "learner.shifts.encoder.0.bias": shift}
    assert found == {name: shape for name, shape in expected.items() if shape}


# -- pre-training ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_rows_in_pre_training_are_those_of_the_baseline(dtype, rtol):
    learner = make(pretrain_steps=2, classes=CLASSES)
    reference = Baseline(*checks.image_networks(flatten=True), classes=CLASSES)
    for part in (learner, reference):
        for module in (part.encoder, part.head, part.extra_modules):
            module.to(dtype)
    reference.extra_modules["classifier"].load_state_dict(learner.extra_modules["classifier"].state_dict())
    batch = class_tasks()
    batch = replace(batch, support_x=batch.support_x.to(dtype), query_x=batch.query_x.to(dtype))
    checks.assert_rows_equal(learner.rows(batch), reference.rows(batch), rtol, rtol / 1000)


def test_each_phase_trains_its_own_parameters_under_momentum_and_weight_decay():
    learner = make(normalized=True, pretrain_steps=2, classes=CLASSES)
    everything = {"encoder": learner.encoder, "head": learner.head, **learner.extra_modules}
    outer, changed = torch.optim.AdamW(learner.parameters(), lr=0.1, weight_decay=0), []
    for _ in range(4):
        before = copy.deepcopy({name: module.state_dict() for name, module in everything.items()})
        learner.step(class_tasks(), outer)
        changed.append({name for name in everything if str(before[name]) != str(everything[name].state_dict())})
    first, second = {"encoder", "classifier", "count"}, {"head", "scales", "shifts", "count"}
    assert changed == [first, first, second, second]
    assert not learner.pretraining


def test_the_head_is_adapted_at_meta_test_during_pre_training():
    learner = make(pretrain_steps=2, classes=CLASSES, inner_steps=2, test_steps=4, inner_lr=0.1)
    reference = anil(*checks.image_networks(flatten=True), inner_steps=2, test_steps=4, inner_lr=0.1)
    assert learner.evaluate(class_tasks()).losses == pytest.approx(reference.evaluate(class_tasks()).losses, rel=1e-12)


# -- options and errors ----------------------------------------------------------------------------------------------


def test_layers_that_are_frozen_later_are_not_scaled():
    learner, reference = make(), make()
    for part in (learner, reference):
        part.encoder[0].requires_grad_(False)
    perturb(learner)
    torch.testing.assert_close(learner.rows(class_tasks()).losses, reference.rows(class_tasks()).losses, rtol=0, atol=0)


def test_an_encoder_without_layers_to_scale_raises():
    with pytest.raises(OptionError, match="scales convolutions and linear layers of the encoder"):
        MTL(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3)), nn.Linear(3, 2))
