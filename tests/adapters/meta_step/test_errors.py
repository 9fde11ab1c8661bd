"""Errors of meta_step with the fix in the message; homogenizers within the network act as in a learner."""

import pytest
import torch
import torchopt
from torch.nn.functional import cross_entropy, mse_loss

import gradhomog
from gradhomog import Homogenizer, OptionError
from gradhomog_adapters.torchopt import meta_step
from tests.adapters.meta_step.loops import INNER, Images, image_loop, image_tasks, loop, network, tasks


def assert_rejected(match, pipe="none", net=None, **options):
    """Check that entering a meta-step raises a message."""
    with (
        pytest.raises(OptionError, match=match),
        meta_step(net or network(), gradhomog.pipeline(pipe) if isinstance(pipe, str) else pipe, **options),
    ):
        raise AssertionError("entered")


def test_invalid_arguments_raise_before_the_step():
    net, other = network(), network()
    assert_rejected("created once before training", pipe=["pcgrad"])
    assert_rejected("found none", net=network().requires_grad_(False))
    assert_rejected("isi attaches to it", pipe="isi")
    assert_rejected("this one is not part of it", pipe="isi", encoder=other)
    assert_rejected(
        "such as torchopt.MetaSGD, or several; got SGD", inner=torch.optim.SGD(net.parameters(), lr=0.1), net=net
    )
    assert_rejected(
        "adapts another module", inner=[torchopt.MetaSGD(net, lr=0.1), torchopt.MetaSGD(other, lr=0.1)], net=net
    )
    assert_rejected("momentum and dampening", inner=torchopt.MetaSGD(net, lr=0.1, momentum=0.9, dampening=0.5), net=net)
    assert_rejected("'0.weight' is invalid", extra={"0.weight": torch.zeros(1, requires_grad=True)})
    assert_rejected("'rate' is invalid", extra={"rate": torch.zeros(1)})


def test_an_adapted_network_and_an_adapted_inner_state_raise():
    net, (task, *_) = network(), tasks()
    inner, start = torchopt.MetaAdam(net, lr=0.1), torchopt.extract_state_dict(net, by="reference")
    inner.step(mse_loss(net(task[0]), task[1]))
    assert_rejected("`0.weight` is the result of an inner loop", net=net)
    torchopt.recover_state_dict(net, start)
    assert_rejected("the state of this MetaAdam has a graph", net=net, inner=inner)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_an_inner_optimizer_with_state_raises_if_it_is_not_passed(name):
    net = network()
    inner = INNER[name](net)
    with pytest.raises(OptionError, match=r"`loss` of task 1 \(domain 'domain 1'\) .* inner=optimizer"):
        loop(net, gradhomog.pipeline("none"), tasks(), lambda net: inner)


def assert_task_raises(match, body, pipe="none", error=OptionError):
    """Check that `body(step, net, x)` raises within a task."""
    net = Images()
    with pytest.raises(error, match=match), meta_step(net, gradhomog.pipeline(pipe)) as step, step.task(domain="greek"):
        body(step, net, torch.randn(4, 1, 8, 8))


def test_invalid_losses_raise_with_the_name_of_the_task():
    who = r"task 0 \(domain 'greek'\)"
    assert_task_raises(f"`loss` of {who} must be a scalar tensor.*got float", lambda step, net, x: step.add(0.5))
    assert_task_raises(f"{who}.*got shape \\(4, 3\\)", lambda step, net, x: step.add(net(x)))
    assert_task_raises(f"{who} must have a graph", lambda step, net, x: step.add(net(x).sum().detach()))
    assert_task_raises(f"{who} must depend on a parameter", lambda step, net, x: step.add(Images()(x).sum()))
    assert_task_raises(f"{who} has no query loss. Call step.add", lambda step, net, x: None)

    def twice(step, net, x):
        loss = net(x).square().sum()
        step.add(loss)
        step.add(loss)

    assert_task_raises(f"the graph of {who} was freed by step.add.*retain_graph=True", twice)


def test_other_errors_of_autograd_pass_unchanged():
    def changed(step, net, x):
        hidden = net(x).exp()
        total = hidden.sum()
        hidden.detach().add_(1)  # the derivative of exp needs this tensor
        step.add(total)

    assert_task_raises("modified by an inplace operation", changed, error=RuntimeError)


def test_a_pipeline_that_requires_features_reports_the_missing_call():
    assert_task_raises(r"Call step\.query\(\) before", lambda step, net, x: step.add(net(x, step).sum()), "rotate")

    def without_transform(step, net, x):
        step.query()
        step.add(net(x).sum())

    assert_task_raises(r"write features = step\.transform\(features\)", without_transform, "rotate")

    def not_used(step, net, x):
        step.query()
        step.transform(net.encoder(x))
        step.add(net(x).sum())

    def images(step, net, x):
        step.query()
        step.transform(x)

    assert_task_raises("must depend on the result of step.transform", not_used, ["rotate", "static(weights=[1])"])
    assert_task_raises(r"shape \[queries, features\]; got \(4, 1, 8, 8\)", images, "rotate")


def test_different_numbers_of_queries_raise_if_features_are_compared():
    first, second, *_ = image_tasks()
    short = gradhomog.Task(second.support_x, second.support_y, second.query_x[:3], second.query_y[:3], second.domain)
    image_loop(Images(), gradhomog.pipeline("pcgrad"), [first, short])
    with pytest.raises(gradhomog.DataError, match=r"must have one shape in all tasks of a step; got \[\(6,"):
        image_loop(Images(), gradhomog.pipeline("rotate"), [first, short])


def test_methods_raise_outside_their_block():
    net, pipe = network(), gradhomog.pipeline("none")
    with pytest.raises(OptionError, match="at least one task; got none"), meta_step(net, pipe):
        pass
    with pytest.raises(OptionError, match=r"must not be nested; task 0 is still open"), meta_step(net, pipe) as step:  # noqa: SIM117
        with step.task(), step.task():
            pass
    for method in ("query", "support"):
        with pytest.raises(OptionError, match=rf"`step\.{method}` requires an open task"), meta_step(net, pipe) as step:
            getattr(step, method)()
    with pytest.raises(OptionError, match=r"`step\.add` requires an open task"), meta_step(net, pipe) as step:
        step.add(net(torch.ones(1, 3, dtype=torch.float64)).sum())
    with pytest.raises(OptionError, match="that block has ended"), step.task():
        pass
    with pytest.raises(OptionError, match="has ended without an error"):
        _ = step.report


PIPES = [
    "isi(layers=1)",
    "rotate(lr=0.1)",
    "rotogbml(isi={'layers': 1})",
    "rotate(pool='sample', parameterization='geodesic')",
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
