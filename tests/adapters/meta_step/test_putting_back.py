"""After `meta_step` network, buffers and inner optimizers are as they were, also when a task or the pipeline fails."""

from __future__ import annotations

import pytest
import torch
import torchopt
from torch.nn.functional import mse_loss

import gradhomog
from gradhomog import NonfiniteError, OptionError
from gradhomog_adapters.torchopt import meta_step
from tests.adapters.meta_step.by_hand import INNER, by_hand, sgd
from tests.adapters.meta_step.loops import STEPS, Recorder, loop, network, tasks


def state_of(net, inner):
    parameters = {name: (id(p), p.detach().clone()) for name, p in net.named_parameters()}
    buffers = {name: (id(b), b.clone()) for name, b in net.named_buffers()}
    return parameters, buffers, inner.state_dict()


def same(before, after):
    return all(
        list(old) == list(new) and all(old[n][0] == new[n][0] and torch.equal(old[n][1], new[n][1]) for n in old)
        for old, new in zip(before[:2], after[:2], strict=True)
    ) and all(old is new for old, new in zip(before[2], after[2], strict=True))


class Stop(Exception):
    pass


@pytest.mark.parametrize("error", [None, Stop, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["inner loop", "after add", "between tasks"])
def test_parameters_buffers_and_optimizer_are_the_same_afterwards_whatever_happens(error, where):
    net, batch = network(norm=True), tasks()
    inner = torchopt.MetaAdam(net, lr=0.02, eps_root=1e-8)
    before = state_of(net, inner)

    def happens(place, number):
        if error is not None and place == where and number == 1:
            raise error

    def run():
        with meta_step(net, gradhomog.pipeline("none"), inner=inner) as step:
            for number, (support_x, support_y, query_x, query_y) in enumerate(batch):
                with step.task():
                    inner.step(mse_loss(net(support_x), support_y))
                    happens("inner loop", number)
                    step.add(mse_loss(net(query_x), query_y))
                    happens("after add", number)
                inner.step(mse_loss(net(support_x), support_y))  # no task's: not kept either
                happens("between tasks", number)

    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    assert same(before, state_of(net, inner))
    assert all((parameter.grad is None) == (error is not None) for parameter in net.parameters())


def test_after_each_task_the_network_is_as_before_the_step():
    net, batch = network(norm=True), tasks()
    inner = torchopt.MetaSGD(net, lr=0.1, momentum=0.9)
    seen = []
    with meta_step(net, gradhomog.pipeline("none"), inner=inner) as step:
        for support_x, support_y, query_x, query_y in batch:
            with step.task():
                seen.append(
                    (net[1].running_mean.clone(), int(net[1].num_batches_tracked), net[0].weight, *inner.state_groups)
                )
                inner.step(mse_loss(net(support_x), support_y))
                step.add(mse_loss(net(query_x), query_y))
    for mean, count, weight, state in seen:
        assert torch.equal(mean, torch.zeros(5, dtype=torch.float64))
        assert count == 0
        assert weight is net[0].weight
        assert state is inner.state_groups[0]


def test_a_value_that_was_written_to_in_place_is_put_back_and_told():
    net, (task, *_) = network(), tasks()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    inner = torch.optim.SGD(net.parameters(), lr=0.1)

    def run():
        with meta_step(net, gradhomog.pipeline("none")) as step, step.task(domain="x"):
            mse_loss(net(task[0]), task[1]).backward()
            inner.step()
            step.add(mse_loss(net(task[2]), task[3]))

    with pytest.raises(OptionError, match=r"in task 0 \(domain 'x'\), `0\.weight` was written to in place"):
        run()
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())


def test_a_task_that_raised_takes_no_part_if_the_loop_goes_on():
    net, batch, recorder = network(), tasks(), Recorder()
    with meta_step(net, gradhomog.pipeline([recorder])) as step:
        for number, (support_x, support_y, query_x, query_y) in enumerate(batch):
            try:
                with step.task(domain=str(number)):
                    inner = torchopt.MetaSGD(net, lr=0.1)
                    for _ in range(STEPS):
                        inner.step(mse_loss(net(support_x), support_y))
                    step.add(mse_loss(net(query_x), query_y))
                    if number == 1:
                        raise Stop
            except Stop:
                pass
    assert step.report.domains == ("0", "2")
    torch.testing.assert_close(recorder.seen["0.weight"][1], by_hand(net, batch[2], sgd)["0.weight"])


def test_a_pipeline_that_refuses_the_step_writes_no_grad():
    net, batch = network(), tasks()
    batch[1] = (*batch[1][:3], batch[1][3] * float("nan"))
    with pytest.raises(NonfiniteError):
        loop(net, gradhomog.pipeline("pcgrad"), batch, INNER["sgd"][1])
    assert all(parameter.grad is None for parameter in net.parameters())
    report = loop(net, gradhomog.pipeline("pcgrad", nonfinite="drop"), batch, INNER["sgd"][1]).report
    assert report.tasks == (0, 2)


def test_momentum_without_dampening_may_be_put_back():
    net = network()
    loop(net, gradhomog.pipeline("none"), tasks(), inner=torchopt.MetaSGD(net, lr=0.1, momentum=0.9, nesterov=True))
