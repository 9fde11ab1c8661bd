"""Homogenizers that act within the network have the same effect in `meta_step` as in a learner."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

import gradhomog
from gradhomog import Homogenizer
from gradhomog_adapters.torchopt import meta_step
from tests.adapters.meta_step.loops import Images, image_loop, image_tasks

PIPES = [
    "isi(layers=1)",
    "rotate(lr=0.1)",
    "rotogbml(isi={'layers': 1})",
    "rotate(pool='class', parameterization='geodesic')",
]


@pytest.mark.parametrize("text", PIPES)
def test_masks_and_rotations_are_those_of_the_learner_in_every_step(text):
    # MAML is tested separately: inputs, random numbers and updates of homogenizers must be the same here.
    net, twin, batch = Images(), Images(), image_tasks()
    pipe, theirs = gradhomog.pipeline(text), gradhomog.pipeline(text)
    learner = gradhomog.learner("maml", twin.encoder, twin.head, homogenizers=theirs, inner_lr=0.1, inner_steps=2)
    optimizers = [torch.optim.SGD(parameters, lr=0.1) for parameters in (net.parameters(), twin.parameters())]
    for _ in range(3):
        ours = image_loop(net, pipe, batch).report
        optimizers[0].step()
        report = learner.step(batch, optimizers[1])
        torch.testing.assert_close(ours.losses, report.losses)
        torch.testing.assert_close(ours.cosines, report.cosines, rtol=1e-4, atol=1e-5)
        assert set(ours.measured) == set(report.measured)
    for parameter, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-4, atol=1e-5)


def test_features_change_in_query_passes_only_and_hooks_are_removed():
    class Double(Homogenizer):
        def transform(self, features, keys):
            return 2 * features

    net, (task, *_) = Images(), image_tasks(1)
    features, seen = torch.ones(2, 4), []
    with meta_step(net, gradhomog.pipeline([Double()])) as step:
        seen.append(step.transform(features))
        with step.task():
            seen.append(step.transform(features))
            step.query()
            seen.append(step.transform(features))
            step.add(net(task.query_x, step).sum())
            step.support()
            seen.append(step.transform(features))
    seen.append(step.transform(features))
    assert [int(tensor.mean()) for tensor in seen] == [1, 1, 2, 1, 1]
    image_loop(net, gradhomog.pipeline("isi(layers=1)"), [task])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_features_of_a_frozen_encoder_have_gradients():
    net, batch = Images(), image_tasks()
    net.encoder.requires_grad_(False)
    pipe = gradhomog.pipeline("rotate(lr=0.1)")
    with meta_step(net, pipe) as step:
        for task in batch:
            with step.task():
                step.query()
                step.add(cross_entropy(net(task.query_x, step), task.query_y))
    assert len(step.report.measured["rotate"]["angle"]) == 3


@pytest.mark.parametrize("text", PIPES)
@pytest.mark.parametrize("penalty", [False, True], ids=["both use the features", "one is a penalty of the weights"])
def test_gradients_of_features_are_summed_over_the_losses_of_a_task(text, penalty):
    (task, *_), results = image_tasks(), []
    for split in (False, True):
        net, pipe = Images(), gradhomog.pipeline(text)
        with meta_step(net, pipe, encoder=net.encoder) as step, step.task():
            step.query(task.query_y)
            outputs = net(task.query_x, step)
            other = net.head.weight.square().sum() if penalty else outputs.square().mean()
            parts = [cross_entropy(outputs, task.query_y), other]
            if split:
                step.add(parts[0], retain_graph=True)
                step.add(parts[1])
            else:
                step.add(sum(parts))
        grads = {name: parameter.grad for name, parameter in net.named_parameters()}
        results.append((pipe.state_dict(), grads, step.report.losses))
    torch.testing.assert_close(results[0], results[1])
