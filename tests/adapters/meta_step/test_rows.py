"""Rows of meta_step against a reference MAML, and the network and optimizers, restored after tasks and errors."""

import copy
import gc

import pytest
import torch
import torchopt
from torch import nn
from torch.nn.functional import mse_loss

import gradhomog
from gradhomog import NonfiniteError, OptionError
from gradhomog_adapters.torchopt import meta_step
from tests.adapters.checks import CallCounter
from tests.adapters.meta_step.loops import INNER, STEPS, Recorder, loop, network, reference_row, rows_of, tasks


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("shared_inner", [True, False], ids=["one for all tasks", "one per task"])
@pytest.mark.parametrize("inner", INNER)
def test_rows_equal_a_reference_maml_in_float64(inner, shared_inner, norm):
    net, batch, make = network(norm), tasks(), INNER[inner]
    expected = [reference_row(net, task, inner) for task in batch]
    rows = rows_of(net, batch, inner=make(net)) if shared_inner else rows_of(net, batch, make)
    assert list(rows) == [name for name, _ in net.named_parameters()]
    for name, value in rows.items():
        torch.testing.assert_close(value, torch.stack([row[name] for row in expected]), rtol=1e-9, atol=1e-12)


def test_rows_are_matched_by_name_for_any_order_of_the_parameters():
    # TorchOpt sorts names: matching rows by position would swap the two matrices of the same shape.
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.z = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))
            self.a = nn.Parameter(torch.tensor([[0.5, -1.0], [0.0, 1.5]], dtype=torch.float64))

        def forward(self, x):
            return x @ self.z @ self.a

    net, batch = Product(), [(x[:, :2], y, q[:, :2], t) for x, y, q, t in tasks()]
    make = INNER["adam"]
    rows, expected = rows_of(net, batch, make), [reference_row(net, task, "adam") for task in batch]
    for name in ("z", "a"):
        torch.testing.assert_close(rows[name], torch.stack([row[name] for row in expected]))


def test_the_direction_replaces_grad_and_the_report_describes_the_step():
    net, batch, make = network(), tasks(), INNER["sgd"]
    net[0].bias.grad = torch.full((5,), 7.0, dtype=torch.float64)
    rows = rows_of(copy.deepcopy(net), batch, make)
    report = loop(net, gradhomog.pipeline("pcgrad"), batch, make).report
    direction = gradhomog.pipeline("pcgrad").combine(rows)
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, direction[name])
    matrix = torch.cat([value.flatten(1) for value in rows.values()], dim=1)
    torch.testing.assert_close(report.norms, matrix.norm(dim=1))
    torch.testing.assert_close(report.cosines, torch.corrcoef(torch.cat([matrix, -matrix], 1))[:3, :3])
    assert report.names == ("domain 0", "domain 1", "domain 2")
    assert report.tasks == (0, 1, 2)
    assert report.losses.dtype == torch.float64
    assert report.accuracies is None
    assert [stage.name for stage in report.stages] == ["pcgrad"]


def test_a_trainable_inner_rate_has_rows_and_a_gradient():
    net, batch = network(), tasks()

    def run(value):
        rate = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        step = loop(net, pipe, batch, lambda net: torchopt.MetaSGD(net, lr=rate), extra={"rate": rate})
        return step.report.losses.mean(), rate.grad

    pipe = gradhomog.pipeline("none")
    numeric = (run(0.1 + 1e-6)[0] - run(0.1 - 1e-6)[0]) / 2e-6
    torch.testing.assert_close(run(0.1)[1], numeric, rtol=1e-6, atol=1e-9)


def test_frozen_parameters_have_no_row_and_keep_their_grad():
    net, batch = network(), tasks()
    net[0].requires_grad_(False)
    net[0].weight.grad = torch.ones_like(net[0].weight)
    # MetaSGD(net) raises for frozen parameters.
    rows = rows_of(net, batch, lambda net: torchopt.MetaSGD(net[2], lr=0.1))
    assert list(rows) == ["2.weight", "2.bias"]
    assert torch.equal(net[0].weight.grad, torch.ones_like(net[0].weight))
    assert net[2].weight.grad is not None


def test_a_parameter_that_no_loss_depends_on_has_a_zero_row_and_no_grad_as_after_backward():
    net, batch = network(), tasks()
    net.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    net.unused.grad = torch.ones_like(net.unused)
    rows = rows_of(net, batch, INNER["adam"])
    assert torch.equal(rows["unused"], torch.zeros(3, 2, dtype=torch.float64))
    assert net.unused.grad is None


def tied():
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(2)), nn.Linear(3, 2)).double()
    net[1].weight = net[0].weight
    return net


def test_an_inner_loop_that_splits_a_tied_parameter_raises_with_its_names():
    net = tied()
    with pytest.raises(OptionError, match=r"`0\.weight` and `1\.weight` are the same \(tied\) parameter"):
        loop(net, gradhomog.pipeline("none"), tasks(), INNER["sgd"])
    assert net[0].weight is net[1].weight


def test_a_tied_parameter_that_is_not_adapted_has_one_row_that_is_the_sum_over_its_uses():
    net, (task, *_) = tied(), tasks()
    rows = rows_of(net, [task], lambda net: torchopt.MetaSGD(net[2], lr=0.1))
    assert list(rows) == ["0.weight", "2.weight", "2.bias"]
    w, weight, bias = net[0].weight, net[2].weight, net[2].bias
    for _ in range(STEPS):
        loss = mse_loss(task[0] @ w.T @ w.T @ weight.T + bias, task[1])
        gradients = torch.autograd.grad(loss, (weight, bias), create_graph=True)
        weight, bias = weight - 0.1 * gradients[0], bias - 0.1 * gradients[1]
    loss = mse_loss(task[2] @ w.T @ w.T @ weight.T + bias, task[3])
    torch.testing.assert_close(rows["0.weight"][0], torch.autograd.grad(loss, w)[0])


def test_a_layer_that_is_registered_twice_has_one_row():
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).double()
    net = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(3, 2).double())
    rows, expected = rows_of(net, tasks(), INNER["sgd"]), [reference_row(net, task) for task in tasks()]
    torch.testing.assert_close(rows["0.weight"], torch.stack([row["0.weight"] for row in expected]))


def test_add_frees_the_graph_of_its_task():
    net, losses = network().append(CallCounter()), []
    inner = torchopt.MetaAdam(net, lr=0.02, eps_root=1e-8)
    gc.disable()  # tensors must be freed by reference counts, not by the garbage collector
    try:
        with meta_step(net, gradhomog.pipeline("pcgrad"), inner=inner) as step:
            for support_x, support_y, query_x, query_y in tasks(4):
                with step.task():
                    for _ in range(STEPS):
                        inner.step(mse_loss(net(support_x), support_y))
                    losses.append(mse_loss(net(query_x), query_y))
                    step.add(losses[-1])  # although the loss is still referenced
    finally:
        gc.enable()
    assert net[-1].most_alive == STEPS


def state_of(net, inner):
    tensors = [*net.named_parameters(), *net.named_buffers()]
    return [(name, id(tensor), tensor.tolist()) for name, tensor in tensors], str(inner.state_dict())


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
    assert state_of(net, inner) == before
    assert all((parameter.grad is None) == (error is not None) for parameter in net.parameters())


def test_the_network_is_restored_after_each_task():
    net, batch = network(norm=True), tasks()
    inner = torchopt.MetaSGD(net, lr=0.1, momentum=0.9)
    before, (state,) = str(net.state_dict()), inner.state_groups
    with meta_step(net, gradhomog.pipeline("none"), inner=inner) as step:
        for support_x, support_y, query_x, query_y in batch:
            with step.task():
                assert str(net.state_dict()) == before
                assert inner.state_groups[0] is state
                inner.step(mse_loss(net(support_x), support_y))
                step.add(mse_loss(net(query_x), query_y))


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
    torch.testing.assert_close(recorder.seen["0.weight"][1], reference_row(net, batch[2])["0.weight"])


def test_a_pipeline_that_raises_writes_no_grad():
    net, batch = network(), tasks()
    batch[1] = (*batch[1][:3], batch[1][3] * float("nan"))
    with pytest.raises(NonfiniteError):
        loop(net, gradhomog.pipeline("pcgrad"), batch, INNER["sgd"])
    assert all(parameter.grad is None for parameter in net.parameters())
    report = loop(net, gradhomog.pipeline("pcgrad", nonfinite="drop"), batch, INNER["sgd"]).report
    assert report.tasks == (0, 2)


def test_a_loop_steps_in_the_metric_of_its_outer_optimizer():
    net, inner = network(), INNER["sgd"]
    outer = torch.optim.Adam(net.parameters(), lr=0.01)
    for seed in range(3):
        batch = tasks(seed=seed)
        metric = gradhomog.OptimizerMetric(outer, dict(net.named_parameters()))
        rows = metric.scale(rows_of(net, batch, inner))
        expected = metric.unscale(gradhomog.pipeline("aligned_mtl").combine(rows))
        loop(net, gradhomog.pipeline("aligned_mtl"), batch, inner, metric=outer)
        torch.testing.assert_close({name: p.grad for name, p in net.named_parameters()}, expected)
        outer.step()
    with pytest.raises(OptionError, match="tracked keeps rows from step to step"):
        loop(net, gradhomog.pipeline("tracked"), tasks(), inner, metric=outer)
