"""`meta_step` in a loop of one's own: rows against MAML by hand, all put back, nothing held, errors that teach."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
import torchopt
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import gradhomog
from gradhomog import Homogenizer, NonfiniteError, OptionError
from gradhomog_adapters.torchopt import meta_step

STEPS = 3


def network(norm=False):
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(5)] if norm else []
    # No bias before a normalization: its gradient is made of rounding errors, and Adam divides by that.
    return nn.Sequential(nn.Linear(3, 5, bias=not norm), *norms, nn.Tanh(), nn.Linear(5, 2)).double()


def tasks(count=3, seed=1):
    """(support_x, support_y, query_x, query_y) each."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [(draw(6, 3), draw(6, 2), draw(4, 3) + task, draw(4, 2)) for task in range(count)]


def loop(net, pipe, batch, make=None, **options):
    """The loop of a user; `make` makes an inner optimizer for each task, unless `inner` is given."""
    inner = options.get("inner")
    with meta_step(net, pipe, **options) as step:
        for number, (support_x, support_y, query_x, query_y) in enumerate(batch):
            with step.task(domain=f"domain {number}"):
                optimizer = inner or make(net)
                for _ in range(STEPS):
                    optimizer.step(mse_loss(net(support_x), support_y))
                step.add(mse_loss(net(query_x), query_y))
    return step


class Recorder(Homogenizer):
    """Keeps the rows that it is shown."""

    def rows(self, jacobian):
        self.seen = {name: value.clone() for name, value in jacobian.items()}
        return jacobian


def rows_of(net, batch, make=None, **options):
    recorder = Recorder()
    loop(net, gradhomog.pipeline([recorder]), batch, make, **options)
    return recorder.seen


# -- the inner optimizers by hand: one function of parameters and gradients, on a list of tensors --------------------


def sgd(parameters, gradients, state):
    return [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)], state


def momentum(parameters, gradients, state):
    state = [0.9 * s + g for s, g in zip(state or [0.0] * len(gradients), gradients, strict=True)]
    return [p - 0.1 * s for p, s in zip(parameters, state, strict=True)], state


def adam(parameters, gradients, state):
    count, m, v = state or (0, [0.0] * len(gradients), [0.0] * len(gradients))
    count += 1
    m = [0.9 * a + 0.1 * g for a, g in zip(m, gradients, strict=True)]
    v = [0.999 * a + 0.001 * g * g for a, g in zip(v, gradients, strict=True)]
    # TorchOpt forms decay**count in float32, also for float64: 1 - 0.999**count then has four digits, and so has Adam.
    first, second = (1 - torch.pow(decay, torch.tensor(count)).double() for decay in (0.9, 0.999))
    steps = [a / first / ((b / second + 1e-8).sqrt() + 1e-8) for a, b in zip(m, v, strict=True)]
    return [p - 0.02 * s for p, s in zip(parameters, steps, strict=True)], (count, m, v)


INNER = {
    "sgd": (sgd, lambda net: torchopt.MetaSGD(net, lr=0.1)),
    "momentum": (momentum, lambda net: torchopt.MetaSGD(net, lr=0.1, momentum=0.9)),
    "adam": (adam, lambda net: torchopt.MetaAdam(net, lr=0.02, eps_root=1e-8)),
}


def by_hand(net, task, update):
    """The row of one task, by name, with nothing but `torch.autograd.grad` on a functional network."""
    net = copy.deepcopy(net)
    names, leaves = zip(*net.named_parameters(), strict=True)

    def loss(parameters, x, y):
        return mse_loss(torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (x,)), y)

    parameters, state = list(leaves), None
    for _ in range(STEPS):
        gradients = torch.autograd.grad(loss(parameters, *task[:2]), parameters, create_graph=True)
        parameters, state = update(parameters, gradients, state)
    return dict(zip(names, torch.autograd.grad(loss(parameters, *task[2:]), leaves), strict=True))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("given", [True, False], ids=["one for all tasks", "made in each task"])
@pytest.mark.parametrize("name", INNER)
def test_rows_equal_maml_by_hand_in_float64(name, given, norm):
    update, make = INNER[name]
    net, batch = network(norm), tasks()
    expected = [by_hand(net, task, update) for task in batch]
    rows = rows_of(net, batch, inner=make(net)) if given else rows_of(net, batch, make)
    assert list(rows) == [name for name, _ in net.named_parameters()]
    for name, value in rows.items():
        torch.testing.assert_close(value, torch.stack([row[name] for row in expected]), rtol=1e-9, atol=1e-12)


def test_rows_are_told_by_name_whatever_the_order_of_the_parameters():
    # TorchOpt sorts names: a row told by its position would here be that of the other matrix, of the same shape.
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.z = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))
            self.a = nn.Parameter(torch.tensor([[0.5, -1.0], [0.0, 1.5]], dtype=torch.float64))

        def forward(self, x):
            return x @ self.z @ self.a

    net, batch = Product(), [(x[:, :2], y, q[:, :2], t) for x, y, q, t in tasks()]
    make = INNER["adam"][1]
    rows, expected = rows_of(net, batch, make), [by_hand(net, task, adam) for task in batch]
    for name in ("z", "a"):
        torch.testing.assert_close(rows[name], torch.stack([row[name] for row in expected]))


def test_the_direction_of_the_pipeline_is_written_over_grad_and_the_report_tells_the_step():
    net, batch, make = network(), tasks(), INNER["sgd"][1]
    net[0].bias.grad = torch.full((5,), 7.0, dtype=torch.float64)
    rows = rows_of(copy.deepcopy(net), batch, make)
    report = loop(net, gradhomog.pipeline("pcgrad"), batch, make).report
    direction = gradhomog.pipeline("pcgrad").combine(rows)
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, direction[name])
    matrix = torch.cat([value.flatten(1) for value in rows.values()], dim=1)
    torch.testing.assert_close(report.norms, matrix.norm(dim=1))
    torch.testing.assert_close(report.cosines, torch.corrcoef(torch.cat([matrix, -matrix], 1))[:3, :3])
    assert report.domains == ("domain 0", "domain 1", "domain 2")
    assert report.tasks == (0, 1, 2)
    assert report.losses.dtype == torch.float64
    assert report.accuracies is None
    assert [stage.name for stage in report.stages] == ["pcgrad"]


def test_losses_of_one_task_add_up():
    net, (task, *_) = network(), tasks()
    support_x, support_y, query_x, query_y = task
    recorder = Recorder()
    with meta_step(net, gradhomog.pipeline([recorder])) as step, step.task():
        inner = torchopt.MetaSGD(net, lr=0.1)
        for _ in range(STEPS):
            inner.step(mse_loss(net(support_x), support_y))
        step.add(mse_loss(net(query_x), query_y) / 4, retain_graph=True)
        step.add(3 * mse_loss(net(query_x), query_y) / 4)
    for name, value in by_hand(net, task, sgd).items():
        torch.testing.assert_close(recorder.seen[name][0], value)
    with torch.no_grad():
        whole = by_hand_loss(net, task)
    torch.testing.assert_close(step.report.losses, whole[None])


def by_hand_loss(net, task):
    parameters = dict(net.named_parameters())
    for _ in range(STEPS):
        with torch.enable_grad():
            leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
            loss = mse_loss(torch.func.functional_call(net, leaves, (task[0],)), task[1])
            gradients = torch.autograd.grad(loss, list(leaves.values()))
        parameters = {n: p - 0.1 * g for (n, p), g in zip(leaves.items(), gradients, strict=True)}
    return mse_loss(torch.func.functional_call(net, parameters, (task[2],)), task[3])


def test_a_learnt_inner_rate_has_rows_and_a_gradient():
    net, batch = network(), tasks()
    rate = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    loop(net, gradhomog.pipeline("none"), batch, lambda net: torchopt.MetaSGD(net, lr=rate), extra={"rate": rate})

    def mean_loss(value):
        def update(parameters, gradients, state):
            return [p - value * g for p, g in zip(parameters, gradients, strict=True)], state

        return sum(query_loss(net, task, update) for task in batch) / len(batch)

    numeric = (mean_loss(0.1 + 1e-6) - mean_loss(0.1 - 1e-6)) / 2e-6
    torch.testing.assert_close(rate.grad, numeric, rtol=1e-6, atol=1e-9)


def query_loss(net, task, update):
    names, parameters = zip(*net.named_parameters(), strict=True)
    for _ in range(STEPS):
        named = dict(zip(names, parameters, strict=True))
        loss = mse_loss(torch.func.functional_call(net, named, (task[0],)), task[1])
        parameters, _ = update(parameters, torch.autograd.grad(loss, parameters), None)
    return mse_loss(torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (task[2],)), task[3])


# -- which parameters ------------------------------------------------------------------------------------------------


def test_frozen_parameters_have_no_row_and_keep_their_grad():
    net, batch = network(), tasks()
    net[0].requires_grad_(False)
    net[0].weight.grad = torch.ones_like(net[0].weight)
    rows = rows_of(net, batch, lambda net: torchopt.MetaSGD(net[2], lr=0.1))  # MetaSGD(net) refuses frozen parameters
    assert list(rows) == ["2.weight", "2.bias"]
    assert torch.equal(net[0].weight.grad, torch.ones_like(net[0].weight))
    assert net[2].weight.grad is not None


def test_a_parameter_that_no_loss_depends_on_has_a_zero_row_and_no_grad_as_after_backward():
    net, batch = network(), tasks()
    net.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    net.unused.grad = torch.ones_like(net.unused)
    rows = rows_of(net, batch, INNER["adam"][1])
    assert torch.equal(rows["unused"], torch.zeros(3, 2, dtype=torch.float64))
    assert net.unused.grad is None


def test_only_a_part_may_be_adapted_and_all_is_learnt():
    net, (task, *_) = network(), tasks()
    rows = rows_of(net, [task], lambda net: torchopt.MetaSGD(net[2], lr=0.1))
    weight, bias = net[2].weight, net[2].bias
    for _ in range(STEPS):
        loss = mse_loss(net[:2](task[0]) @ weight.T + bias, task[1])
        slopes = torch.autograd.grad(loss, (weight, bias), create_graph=True)
        weight, bias = weight - 0.1 * slopes[0], bias - 0.1 * slopes[1]
    loss = mse_loss(net[:2](task[2]) @ weight.T + bias, task[3])
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(rows[name][0], torch.autograd.grad(loss, parameter, retain_graph=True)[0])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = (nn.Linear(3, 3, bias=False).double() for _ in range(2))
        self.two.weight = self.one.weight
        self.head = nn.Linear(3, 2).double()

    def forward(self, x):
        return self.head(self.two(self.one(x)))


def test_a_tied_parameter_that_the_inner_loop_takes_apart_is_refused_by_its_names():
    net = Tied()
    with pytest.raises(OptionError, match=r"one\.weight and two\.weight are one parameter, but TorchOpt"):
        loop(net, gradhomog.pipeline("none"), tasks(), INNER["sgd"][1])
    assert net.one.weight is net.two.weight


def test_a_tied_parameter_that_is_not_adapted_has_one_row_that_is_the_sum_over_its_uses():
    net, (task, *_) = Tied(), tasks()
    rows = rows_of(net, [task], lambda net: torchopt.MetaSGD(net.head, lr=0.1))
    assert list(rows) == ["one.weight", "head.weight", "head.bias"]
    w, weight, bias = net.one.weight, net.head.weight, net.head.bias
    for _ in range(STEPS):
        loss = mse_loss(task[0] @ w.T @ w.T @ weight.T + bias, task[1])
        slopes = torch.autograd.grad(loss, (weight, bias), create_graph=True)
        weight, bias = weight - 0.1 * slopes[0], bias - 0.1 * slopes[1]
    loss = mse_loss(task[2] @ w.T @ w.T @ weight.T + bias, task[3])
    torch.testing.assert_close(rows["one.weight"][0], torch.autograd.grad(loss, w)[0])


def test_a_layer_that_is_registered_twice_stays_one():
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).double()
    net = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(3, 2).double())
    rows, expected = rows_of(net, tasks(), INNER["sgd"][1]), [by_hand(net, task, sgd) for task in tasks()]
    torch.testing.assert_close(rows["0.weight"], torch.stack([row["0.weight"] for row in expected]))


# -- everything is put back ------------------------------------------------------------------------------------------


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


def test_a_tasks_row_does_not_depend_on_the_other_tasks():
    net, batch = network(norm=True), tasks()
    net.eval()  # running statistics are then what the query sees
    inner = torchopt.MetaSGD(net, lr=lambda count: 0.1 / (1 + count), momentum=0.9)
    together = rows_of(net, batch, inner=inner)
    for slot, task in enumerate(batch):
        alone = rows_of(net, [task], inner=inner)
        assert all(torch.equal(value[0], together[name][slot]) for name, value in alone.items())


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


# -- memory ----------------------------------------------------------------------------------------------------------


class Held:
    def __init__(self, tensor):
        self.tensor = tensor


def test_add_frees_the_graph_of_the_task_and_no_task_adds_to_what_is_held():
    net, batch = network(), tasks(4)
    inner, held, peaks = torchopt.MetaAdam(net, lr=0.02, eps_root=1e-8), weakref.WeakSet(), []

    def keep(tensor):
        box = Held(tensor)
        held.add(box)
        return box

    gc.disable()  # freed at once, not when a collector comes by
    try:
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda box: box.tensor),
            meta_step(net, gradhomog.pipeline("pcgrad"), inner=inner) as step,
        ):
            for support_x, support_y, query_x, query_y in batch:
                with step.task():
                    for _ in range(STEPS):
                        inner.step(mse_loss(net(support_x), support_y))
                    loss = mse_loss(net(query_x), query_y)
                    peaks.append(len(held))
                    step.add(loss)  # though `loss` itself lives on
                assert len(held) == 0
    finally:
        gc.enable()
    assert peaks[0] > 50
    assert len(set(peaks)) == 1


# -- homogenizers that act within the network --------------------------------------------------------------------------


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Linear(4 * 3 * 3, 3)

    def forward(self, x, step=None):
        features = self.encoder(x)
        return self.head(features if step is None else step.transform(features))


def image_tasks(count=3):
    x = torch.randn(count, 12, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    y = torch.arange(3).repeat(4)
    return [gradhomog.Task(x[i, :6], y[:6], x[i, 6:], y[6:], f"domain {i}") for i in range(count)]


def image_loop(net, pipe, batch, **options):
    with meta_step(net, pipe, encoder=net.encoder, **options) as step:
        for task in batch:
            with step.task(domain=task.domain):
                inner = torchopt.MetaSGD(net, lr=0.1)
                for _ in range(2):
                    inner.step(cross_entropy(net(task.support_x, step), task.support_y))
                step.query(task.query_y)
                step.add(cross_entropy(net(task.query_x, step), task.query_y))
    return step


PIPES = [
    "isi(layers=1)",
    "rotate(lr=0.1)",
    "rotogbml(isi={'layers': 1})",
    "rotate(pool='class', parameterization='procrustes')",
]


@pytest.mark.parametrize("text", PIPES)
def test_masks_and_rotations_are_those_of_the_learner_step_after_step(text):
    # MAML is tested on its own: what a homogenizer sees, draws and learns must be the same here.
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


def test_features_are_changed_in_query_passes_only_and_hooks_are_gone_afterwards():
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


def test_features_of_a_frozen_encoder_are_where_derivatives_end():
    net, batch = Images(), image_tasks()
    net.encoder.requires_grad_(False)
    pipe = gradhomog.pipeline("rotate(lr=0.1)")
    with meta_step(net, pipe) as step:
        for task in batch:
            with step.task():
                step.query()
                step.add(cross_entropy(net(task.query_x, step), task.query_y))
    assert len(step.report.measured["rotate"]["angle"]) == 3


# -- errors ------------------------------------------------------------------------------------------------------------


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


def test_momentum_without_dampening_may_be_put_back():
    net = network()
    loop(net, gradhomog.pipeline("none"), tasks(), inner=torchopt.MetaSGD(net, lr=0.1, momentum=0.9, nesterov=True))


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
