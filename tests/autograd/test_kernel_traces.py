"""Traces of tangent kernels against central differences, in `backward`, `loss` and `combine`."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import gradhomog
from gradhomog import Homogenizer, OptionError
from gradhomog.autograd.backward_passes import BackwardPasses
from gradhomog.autograd.loss_step import kernel_trace
from gradhomog.step.step import seeded_generator


def network(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).to(dtype)


def points(count, seed=0, dtype=torch.float64):
    return torch.randn(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def laplacian(net, x):
    """A residual with second derivatives of the network w.r.t. its input."""
    x = x.detach().requires_grad_()
    first = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]
    return sum(torch.autograd.grad(first[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(2))


def jacobian(net, residuals):
    """∂ residuals / ∂θ, `[residuals, params]`, by central differences; `residuals` is a function of the network."""
    columns = []
    for parameter in net.parameters():
        entries = parameter.data.view(-1)
        for index in range(entries.numel()):
            values = []
            for step in (1e-5, -2e-5):
                entries[index] += step
                values.append(residuals(net).detach().flatten())
            entries[index] += 1e-5
            columns.append((values[0] - values[1]) / 2e-5)
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize(("count", "probes"), [(1, 1), (7, 7), (7, 16)])
def test_with_enough_probes_the_trace_is_exact(count, probes):
    net, x = network(), points(count)
    found = kernel_trace(net(x).flatten(), [*net.parameters()], probes, seeded_generator(0), BackwardPasses())
    expected = jacobian(net, lambda net: net(x)).square().sum() / count
    torch.testing.assert_close(found.detach(), expected, rtol=1e-7, atol=0)


def test_over_all_vectors_of_signs_the_estimate_has_the_mean_and_the_variance_that_are_stated(monkeypatch):
    net, x = network(), points(6)
    every = torch.cartesian_prod(*[torch.tensor([0, 1])] * 6)  # all 64 vectors instead of random ones
    estimates = []
    for signs in every:
        monkeypatch.setattr(torch, "randint", lambda *_, signs=signs, **__: signs[None])
        estimates.append(kernel_trace(net(x).flatten(), [*net.parameters()], 1, None, BackwardPasses()).detach())
    kernel = jacobian(net, lambda net: net(x))
    kernel = kernel @ kernel.T
    found, off_diagonal = torch.stack(estimates), kernel - torch.diag(kernel.diagonal())
    torch.testing.assert_close(found.mean(), kernel.trace() / 6, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.var(correction=0), 2 * off_diagonal.square().sum() / 36, rtol=1e-6, atol=0)


class Watch(Homogenizer):
    """Records the traces of every step, with 64 probes."""

    def __init__(self):
        self.seen = []

    def mix(self, step):
        self.seen.append(step.kernel_traces(64))
        return torch.ones(step.tasks, dtype=torch.float64)


def problem(dtype=torch.float64):
    net = network(dtype=dtype)
    inside, edge = points(9, 1, dtype), points(4, 2, dtype)
    residuals = {"pde": laplacian(net, inside), "edge": net(edge) - 1}
    return net, residuals, {name: value.square().mean() for name, value in residuals.items()}


def expected_traces():
    net = network()
    inside, edge = (
        jacobian(net, part) for part in (lambda net: laplacian(net, points(9, 1)), lambda net: net(points(4, 2)))
    )
    return torch.stack([inside.square().sum() / 9, edge.square().sum() / 4])


@pytest.mark.parametrize("order", ["dict", "sequence"])
def test_backward_passes_the_traces_of_the_residuals_and_writes_the_same_gradients(order):
    net, residuals, losses = problem()
    watch = Watch()
    if order == "sequence":
        residuals, losses = [*residuals.values()], [*losses.values()]
    gradhomog.backward(losses, gradhomog.pipeline([watch]), parameters=net, residuals=residuals)
    torch.testing.assert_close(watch.seen[0], expected_traces(), rtol=1e-6, atol=0)
    assert not watch.seen[0].requires_grad
    written = [parameter.grad for parameter in net.parameters()]
    other, _, plain = problem()
    (sum(plain.values()) / 2).backward()
    for found, parameter in zip(written, other.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad)


@pytest.mark.parametrize("other", ["pcgrad", "graddrop", "static"])
def test_traces_can_be_read_before_and_after_methods_that_read_the_rows(other):
    for members in ([other, Watch()], [Watch(), other]):
        net, residuals, losses = problem()
        pipe = gradhomog.pipeline(members)
        gradhomog.backward(losses, pipe, parameters=net, residuals=residuals)
        (watch,) = (member for member in pipe if isinstance(member, Watch))
        torch.testing.assert_close(watch.seen[0], expected_traces(), rtol=1e-6, atol=0)


def test_the_scalar_loss_computes_them_in_its_backward_pass():
    net, residuals, losses = problem()
    watch = Watch()
    total = gradhomog.loss(losses, gradhomog.pipeline([watch]), parameters=net, residuals=residuals)
    assert watch.seen == []
    total.backward()
    torch.testing.assert_close(watch.seen[0], expected_traces(), rtol=1e-6, atol=0)


def test_absent_tasks_have_no_trace_and_groups_of_parameters_have_those_of_the_model():
    net, residuals, losses = problem()
    watch = Watch()
    pipe = gradhomog.pipeline([watch])
    gradhomog.backward({**losses, "pde": None}, pipe, parameters=net, residuals={"edge": residuals["edge"]})
    torch.testing.assert_close(watch.seen[0], expected_traces()[1:], rtol=1e-6, atol=0)
    net, residuals, losses = problem()
    pipe = gradhomog.pipeline([Watch()])
    gradhomog.backward(losses, pipe, parameters=net, residuals=residuals, per="layer")
    for layer in ("0", "2"):
        torch.testing.assert_close(next(iter(pipe.group(layer))).seen[0], expected_traces(), rtol=1e-6, atol=0)


def test_with_create_graph_the_direction_is_differentiable_through_the_traces():
    def direction(bias):
        net, x = network(), points(3)
        parameters = {**{name: value.detach() for name, value in net.named_parameters()}, "0.bias": bias}
        residuals = [functional_call(net, parameters, (x,)), functional_call(net, parameters, (2 * x,)) - 1]
        step = gradhomog.backward(
            [value.square().mean() for value in residuals], gradhomog.pipeline("ntk"), parameters={"0.bias": bias},
            residuals=residuals, create_graph=True,
        )  # fmt: skip
        return step.direction["0.bias"]

    bias = network()[0].bias.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(direction, [bias], atol=1e-6)


def test_homogenizers_that_read_no_traces_ignore_the_residuals():
    net, _, losses = problem()
    gradhomog.backward(losses, gradhomog.pipeline("mgda"), parameters=net, residuals="anything")


@pytest.mark.parametrize(("change", "message"), [
    (lambda r: None, r"requires the residuals of the tasks.*residuals=.*gradhomog.backward\(\).*kernel_traces="),
    (lambda r: r["pde"], "must be a sequence or a dict with one tensor per task; got one tensor"),
    (lambda r: [r["pde"]], "must have one tensor for each of the 2 losses; got 1"),
    (lambda r: {**r, "egde": r["edge"]}, r"names of the losses \(pde, edge\); got pde, edge, egde"),
    (lambda r: {"pde": r["pde"]}, "residuals of task edge must be a floating-point tensor with a graph; got NoneType"),
    (lambda r: {**r, "edge": r["edge"].detach()}, "task edge must be .* got torch.float64 without a graph"),
    (lambda r: {**r, "edge": r["edge"][:0]}, "task edge must not be empty"),
])  # fmt: skip
def test_an_error_names_what_is_wrong_with_the_residuals_and_nothing_is_written(change, message):
    net, residuals, losses = problem()
    pipe = gradhomog.pipeline("ntk")
    with pytest.raises(OptionError, match=message):
        gradhomog.backward(losses, pipe, parameters=net, residuals=change(residuals))
    assert pipe.steps == 0
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize("traces", [[1.0], torch.ones(2, 2), [1.0, -1.0]])
def test_given_traces_must_be_one_number_per_task_and_not_negative(traces):
    with pytest.raises(OptionError, match=r"`kernel_traces` must have shape \[2\], one number ≥ 0 per task"):
        gradhomog.pipeline("ntk").combine(torch.eye(2), kernel_traces=traces)


def test_a_dropped_task_takes_its_trace_with_it():
    rows = torch.eye(3)
    rows[1, 1] = torch.nan
    pipe = gradhomog.pipeline("ntk", nonfinite="drop")
    found = pipe.homogenize(rows, kernel_traces=torch.tensor([1.0, 5.0, 3.0]))
    assert found.measured["ntk"]["traces"] == [1, 3]
