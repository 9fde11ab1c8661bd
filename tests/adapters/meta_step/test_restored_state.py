"""`meta_step` restores network, buffers and inner optimizers, also if a task or the pipeline fails."""

from __future__ import annotations

import pytest
import torch
import torchopt
from torch.nn.functional import mse_loss

import gradhomog
from gradhomog import NonfiniteError, OptionError
from gradhomog_adapters.torchopt import meta_step
from tests.adapters.meta_step.loops import INNER, STEPS, Recorder, loop, network, reference_row, sgd, tasks


def state_of(net, inner):
    parameters = {name: (id(p), p.detach().clone()) for name, p in net.named_parameters()}
    buffers = {name: (id(b), b.clone()) for name, b in net.named_buffers()}
    return parameters, buffers, inner.state_dict()


def equal_states(before, after):
    return all(
        list(old) == list(new) and all(old[n][0] == new[n][0] and torch.equal(old[n][1], new[n][1]) for n in old)
        for old, new in zip(before[:2], after[:2], strict=True)
    ) and all(old is new for old, new in zip(before[2], after[2], strict=True))


class LoopError(Exception):
    pass


@pytest.mark.parametrize("error", [None, LoopError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["inner loop", "after add", "between tasks"])
def test_parameters_buffers_and_optimizer_are_restored_also_on_errors(error, where):
    net, batch = network(norm=True), tasks()
    inner = torchopt.MetaAdam(net, lr=0.02, eps_root=1e-8)
    before = state_of(net, inner)

    def maybe_raise(place, number):
        if error is not None and place == where and number == 1:
            raise error

    def run():
        with meta_step(net, gradhomog.pipeline("none"), inner=inner) as step:
            for number, (support_x, support_y, query_x, query_y) in enumerate(batch):
                with step.task():
                    inner.step(mse_loss(net(support_x), support_y))
                    maybe_raise("inner loop", number)
                    step.add(mse_loss(net(query_x), query_y))
                    maybe_raise("after add", number)
                inner.step(mse_loss(net(support_x), support_y))  # outside a task: restored too
                maybe_raise("between tasks", number)

    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    assert equal_states(before, state_of(net, inner))
    assert all((parameter.grad is None) == (error is not None) for parameter in net.parameters())


def test_the_network_is_restored_after_each_task():
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


def test_a_parameter_modified_in_place_is_restored_and_raises():
    net, (task, *_) = network(), tasks()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    inner = torch.optim.SGD(net.parameters(), lr=0.1)

    def run():
        with meta_step(net, gradhomog.pipeline("none")) as step, step.task(domain="x"):
            mse_loss(net(task[0]), task[1]).backward()
            inner.step()
            step.add(mse_loss(net(task[2]), task[3]))

    with pytest.raises(OptionError, match=r"in task 0 \(domain 'x'\), `0\.weight` was modified in place"):
        run()
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())


def test_a_task_that_raised_is_not_part_of_the_step():
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
                        raise LoopError
            except LoopError:
                pass
    assert step.report.names == ("0", "2")
    torch.testing.assert_close(recorder.seen["0.weight"][1], reference_row(net, batch[2], sgd)["0.weight"])


def test_a_pipeline_that_raises_writes_no_grad():
    net, batch = network(), tasks()
    batch[1] = (*batch[1][:3], batch[1][3] * float("nan"))
    with pytest.raises(NonfiniteError):
        loop(net, gradhomog.pipeline("pcgrad"), batch, INNER["sgd"][1])
    assert all(parameter.grad is None for parameter in net.parameters())
    report = loop(net, gradhomog.pipeline("pcgrad", nonfinite="drop"), batch, INNER["sgd"][1]).report
    assert report.tasks == (0, 2)


def test_momentum_without_dampening_can_be_restored():
    net = network()
    loop(net, gradhomog.pipeline("none"), tasks(), inner=torchopt.MetaSGD(net, lr=0.1, momentum=0.9, nesterov=True))
