"""Errors of `meta_step` for invalid arguments, tasks and calls, with the fix in the message."""

from __future__ import annotations

import pytest
import torch
import torchopt
from torch.nn.functional import mse_loss

import gradhomog
from gradhomog import OptionError
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
    assert_rejected("must be a torch.nn.Module; got list", net=[network()])
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
    assert_rejected(
        "the state of this MetaAdam has a graph",
        net=net,
        inner=inner,
    )


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_an_inner_optimizer_with_state_raises_if_it_is_not_passed(name):
    net = network()
    inner = INNER[name][1](net)
    with pytest.raises(OptionError, match=r"`loss` of task 1 \(domain 'domain 1'\) .* inner=optimizer"):
        loop(net, gradhomog.pipeline("none"), tasks(), lambda net: inner)


def assert_task_raises(match, body, pipe="none", error=OptionError):
    """Check that `body(step, net, x)` raises within a task."""
    net = Images()
    with (
        pytest.raises(error, match=match),
        meta_step(net, gradhomog.pipeline(pipe)) as step,
        step.task(domain="greek"),
    ):
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
    with pytest.raises(OptionError, match="`domain` must be a string"), meta_step(net, pipe) as step, step.task(3):
        pass
    with pytest.raises(OptionError, match="that block has ended"), step.task():
        pass
    with pytest.raises(OptionError, match="has ended without an error"):
        _ = step.report
