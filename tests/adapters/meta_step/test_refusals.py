"""What cannot be a meta-step, or a task of one, is refused in words that say what to do."""

from __future__ import annotations

import pytest
import torch
import torchopt
from torch.nn.functional import mse_loss

import gradhomog
from gradhomog import OptionError
from gradhomog_adapters.torchopt import meta_step
from tests.adapters.meta_step.by_hand import INNER
from tests.adapters.meta_step.images import Images, image_loop, image_tasks
from tests.adapters.meta_step.loops import loop, network, tasks


def refused(match, pipe="none", net=None, **options):
    """Enters a meta-step that must be refused with a message."""
    with (
        pytest.raises(OptionError, match=match),
        meta_step(net or network(), gradhomog.pipeline(pipe) if isinstance(pipe, str) else pipe, **options),
    ):
        raise AssertionError("entered")


def test_what_cannot_be_a_meta_step_is_refused_before_it_begins():
    net, other = network(), network()
    refused("must be a torch.nn.Module; got list", net=[network()])
    refused("made once before the loop", pipe=["pcgrad"])
    refused("found none", net=network().requires_grad_(False))
    refused("isi attaches to it", pipe="isi")
    refused("this one is not part of it", pipe="isi", encoder=other)
    refused("such as torchopt.MetaSGD, or several; got SGD", inner=torch.optim.SGD(net.parameters(), lr=0.1), net=net)
    refused("adapts another module", inner=[torchopt.MetaSGD(net, lr=0.1), torchopt.MetaSGD(other, lr=0.1)], net=net)
    refused("momentum and dampening", inner=torchopt.MetaSGD(net, lr=0.1, momentum=0.9, dampening=0.5), net=net)
    refused("'0.weight' does not do", extra={"0.weight": torch.zeros(1, requires_grad=True)})
    refused("'rate' does not do", extra={"rate": torch.zeros(1)})


def test_an_adapted_network_and_an_inner_state_from_a_loop_are_refused():
    net, (task, *_) = network(), tasks()
    inner, start = torchopt.MetaAdam(net, lr=0.1), torchopt.extract_state_dict(net, by="reference")
    inner.step(mse_loss(net(task[0]), task[1]))
    refused("`0.weight` is the result of an inner loop", net=net)
    torchopt.recover_state_dict(net, start)
    refused("the state of this MetaAdam comes from one", net=net, inner=inner)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_an_inner_optimizer_with_state_that_is_not_put_back_is_told(name):
    net = network()
    inner = INNER[name][1](net)
    with pytest.raises(OptionError, match=r"`loss` of task 1 \(domain 'domain 1'\) .* inner=optimizer"):
        loop(net, gradhomog.pipeline("none"), tasks(), lambda net: inner)


def within(match, body, pipe="none", error=OptionError):
    """Runs `body(step, net, x)` within a task, and expects an error."""
    net = Images()
    with (
        pytest.raises(error, match=match),
        meta_step(net, gradhomog.pipeline(pipe)) as step,
        step.task(domain="greek"),
    ):
        body(step, net, torch.randn(4, 1, 8, 8))


def test_losses_that_give_no_row_are_refused_by_the_name_of_their_task():
    who = r"task 0 \(domain 'greek'\)"
    within(f"`loss` of {who} must be a scalar tensor.*got float", lambda step, net, x: step.add(0.5))
    within(f"{who}.*got shape \\(4, 3\\)", lambda step, net, x: step.add(net(x)))
    within(f"{who} must have a graph", lambda step, net, x: step.add(net(x).sum().detach()))
    within(f"{who} must depend on a parameter", lambda step, net, x: step.add(Images()(x).sum()))
    within(f"{who} has no query loss. Call step.add", lambda step, net, x: None)

    def twice(step, net, x):
        loss = net(x).square().sum()
        step.add(loss)
        step.add(loss)

    within(f"the graph of {who} was freed by step.add.*retain_graph=True", twice)


def test_other_errors_of_autograd_pass_unchanged():
    def changed(step, net, x):
        hidden = net(x).exp()
        total = hidden.sum()
        hidden.detach().add_(1)  # what the derivative of exp was to be computed from
        step.add(total)

    within("modified by an inplace operation", changed, error=RuntimeError)


def test_a_pipeline_that_needs_features_says_what_to_add():
    within(r"Call step\.query\(\) before", lambda step, net, x: step.add(net(x, step).sum()), "rotate")

    def without_transform(step, net, x):
        step.query()
        step.add(net(x).sum())

    within(r"write features = step\.transform\(features\)", without_transform, "rotate")

    def not_used(step, net, x):
        step.query()
        step.transform(net.encoder(x))
        step.add(net(x).sum())

    def images(step, net, x):
        step.query()
        step.transform(x)

    within("must depend on what step.transform returned", not_used, ["rotate", "static(weights=[1])"])
    within(r"shape \[queries, features\]; got \(4, 1, 8, 8\)", images, "rotate")


def test_tasks_with_other_numbers_of_queries_are_refused_where_features_are_compared():
    first, second, *_ = image_tasks()
    short = gradhomog.Task(second.support_x, second.support_y, second.query_x[:3], second.query_y[:3], second.domain)
    image_loop(Images(), gradhomog.pipeline("pcgrad"), [first, short])
    with pytest.raises(gradhomog.DataError, match=r"must have one shape in all tasks of a step; got \[\(6,"):
        image_loop(Images(), gradhomog.pipeline("rotate"), [first, short])


def test_methods_are_refused_where_they_do_not_belong():
    net, pipe = network(), gradhomog.pipeline("none")
    with pytest.raises(OptionError, match="at least one task; got none"), meta_step(net, pipe):
        pass
    with pytest.raises(OptionError, match=r"must not be nested; task 0 is still open"), meta_step(net, pipe) as step:  # noqa: SIM117
        with step.task(), step.task():
            pass
    for method in ("query", "support"):
        with pytest.raises(OptionError, match=rf"`step\.{method}` belongs to a task"), meta_step(net, pipe) as step:
            getattr(step, method)()
    with pytest.raises(OptionError, match=r"`step\.add` belongs to a task"), meta_step(net, pipe) as step:
        step.add(net(torch.ones(1, 3, dtype=torch.float64)).sum())
    with pytest.raises(OptionError, match="`domain` must be a text"), meta_step(net, pipe) as step, step.task(3):
        pass
    with pytest.raises(OptionError, match="that block is over"), step.task():
        pass
    with pytest.raises(OptionError, match="has ended without an error"):
        _ = step.report
