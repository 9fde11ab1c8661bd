"""GradNorm, PeakScale and NTK: weights from norms of rows or traces of kernels, by hand, and their backward passes."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import gradhomog
from tests.autograd.networks import Model, inputs
from tests.plugins.rows import normal


def test_one_step_is_a_multiplicative_gradient_step_and_a_renormalization():
    # Algorithm 1 by hand. First losses are the first step's, so that in the second L̃ = (1, 2, 4) and r = 3/7 · L̃.
    norms = torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)
    pipe = gradhomog.pipeline("gradnorm(alpha=1, lr=0.01)")
    first, second = torch.tensor([2.0, 1.0, 1.0]).double(), torch.tensor([2.0, 2.0, 4.0]).double()
    weights = torch.ones(3, dtype=torch.float64)
    for losses in (first, second, second):
        torch.testing.assert_close(pipe.homogenize(torch.diag(norms), losses).weights, weights)
        weighted, rates = weights * norms, losses / first
        mean = weighted.mean()
        gradient = torch.sign(weighted - mean * rates / rates.mean()) * norms
        weights = weights * torch.exp(-0.01 * weights * gradient / mean)
        weights = 3 * weights / weights.sum()


@pytest.mark.parametrize(("ratio", "steps"), [(4, 150), (100, 300), (1e5, 600)])
def test_with_alpha_zero_the_weighted_norms_become_equal_from_any_ratio(ratio, steps):
    norms = torch.tensor([ratio, 1.0], dtype=torch.float64)
    pipe = gradhomog.pipeline("gradnorm(alpha=0)")
    for _ in range(steps):
        result = pipe.homogenize(torch.diag(norms), torch.ones(2))
    weighted = result.weights * norms
    assert 0.9 < float(weighted[0] / weighted[1]) < 1.1


def test_domains_keep_their_proportion_to_domains_that_are_not_in_the_batch():
    pipe = gradhomog.pipeline("gradnorm(alpha=0, lr=0.05)")
    norms = {"huge": 8.0, "large": 4.0, "small": 1.0}
    generator = torch.Generator().manual_seed(0)
    for _ in range(600):
        pair = [list(norms)[i] for i in torch.randperm(3, generator=generator)[:2].tolist()]
        rows = torch.diag(torch.tensor([norms[name] for name in pair]))
        pipe.combine(rows, losses=[1.0, 1.0], domains=pair)
    rows, names = torch.diag(torch.tensor(list(norms.values()))), list(norms)
    weighted = pipe.homogenize(rows, torch.ones(3), domains=names).weights * torch.tensor(list(norms.values()))
    assert float(weighted.max() / weighted.min()) < 1.3


def test_norms_can_be_measured_on_some_parameters_only():
    rows = {"encoder.w": torch.tensor([[1.0], [1.0]]), "head.w": torch.tensor([[9.0], [0.1]])}
    pipe = gradhomog.pipeline("gradnorm(alpha=0, parameters='encoder.*')")
    for _ in range(3):
        weights = pipe.homogenize(rows, torch.ones(2)).weights
    assert weights.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("options", ["alpha=2000", "lr=1e6", "alpha=2000, lr=1e6", ""])
@pytest.mark.parametrize("smallest", [0.0, 1e-300])
def test_steps_too_large_for_their_exponentials_and_losses_next_to_zero_leave_weights_finite(options, smallest):
    pipe = gradhomog.pipeline(f"gradnorm({options})")
    rows = torch.diag(torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64))
    first = [smallest or 2.0, 1.0, 1.0]
    for losses in (first, [1e10, 1.0, 3.0], [smallest, 0.5, 1.0], [smallest] * 3):
        weights = pipe.homogenize(rows, torch.tensor(losses, dtype=torch.float64)).weights
        assert weights.min() >= 0
        assert float(weights.mean()) == pytest.approx(1)


def history(steps, sizes=(1.0, 30.0, 0.01)):
    return [
        normal(len(sizes), 8, seed=step) * torch.tensor(sizes, dtype=torch.float64)[:, None] for step in range(steps)
    ]


def inverse(norms):
    inverse = 1 / np.asarray(norms)
    return torch.from_numpy(inverse / inverse.mean())


@pytest.mark.parametrize(("tasks", "spacing"), [(2, 0), (2, 3), (3, 1)])
def test_weights_are_inverse_to_the_largest_running_norms_of_the_measured_steps(tasks, spacing):
    rng, pipe = np.random.default_rng(0), gradhomog.pipeline(f"peakscale(warmup=4, spacing={spacing})")
    # The first task's gradient grows, the second's decays, and one step of the first is a thousand times too long.
    sizes = np.exp(0.2 * np.arange(40)[:, None] * np.array([1.0, -1.0, 0.0])[:tasks])
    sizes[24, 0] *= 1000
    warmup, running, largest = [], None, np.zeros(tasks)
    for step, size in enumerate(sizes):
        rows = rng.normal(size=(tasks, 5)) * size[:, None]
        norms = np.sqrt((rows**2).sum(1))
        if step < 4:
            warmup.append(norms)
            medians = np.sort(warmup, axis=0)[len(warmup) // 2]
            running = np.sqrt(np.mean(np.minimum(warmup, 3 * medians) ** 2, axis=0))
            largest = running
        elif step * 2654435769 % 2**32 < 2**32 / (spacing * (tasks - 1) + 1):
            running = np.sqrt(0.9 * running**2 + 0.1 * np.minimum(norms, 3 * running) ** 2)
            largest = np.maximum(largest, running)
        result = pipe.homogenize(torch.from_numpy(rows))
        torch.testing.assert_close(result.weights, inverse(largest))
        torch.testing.assert_close(result.direction[""], inverse(largest) @ torch.from_numpy(rows) / tasks)
    assert largest[0] > 20 * largest[1]


def test_groups_of_tasks_that_alternate_are_all_measured():
    pipe, groups = gradhomog.pipeline("peakscale(warmup=2)"), ("abc", "def", "ghi")
    for step in range(600):
        size = 1.0 if step < 60 else 10.0
        pipe.combine(size * torch.eye(3).double(), domains=list(groups[step % 3]))
    found = [pipe.homogenize(torch.eye(3).double(), domains=list(group)).weights[0] for group in groups]
    torch.testing.assert_close(torch.stack(found), torch.ones(3).double(), atol=0.2, rtol=0)


@pytest.mark.parametrize("text", ["peakscale(warmup=2)", "static(weights=[1, 2, 5]) + peakscale(warmup=2)"])
def test_a_step_after_the_warmup_takes_one_backward_pass(text):
    model, pipe, passes = Model(), gradhomog.pipeline(text), []
    model.encoder[0].weight.register_hook(lambda gradient: passes.append(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counts = []
    for step in range(4):
        passes.clear()
        optimizer.zero_grad()
        losses = model.losses(model.encoder(inputs(seed=step)))
        rows = [torch.autograd.grad(loss, list(model.encoder.parameters()), retain_graph=True) for loss in losses]
        heads = [
            torch.autograd.grad(loss, head.bias, retain_graph=True)
            for loss, head in zip(losses, model.heads, strict=True)
        ]
        passes.clear()
        report = gradhomog.backward(losses, pipe, parameters=model.encoder)
        counts.append(len(passes))
        for index, parameter in enumerate(model.encoder.parameters()):
            expected = sum(weight * row[index] for weight, row in zip(report.weights, rows, strict=True)) / 3
            torch.testing.assert_close(parameter.grad, expected)
        for head, (gradient,) in zip(model.heads, heads, strict=True):
            torch.testing.assert_close(head.bias.grad, gradient)
        optimizer.step()
    assert counts == [3, 3, 1, 1]


def test_a_task_that_appears_later_has_a_warmup_of_its_own():
    pipe, rows = gradhomog.pipeline("peakscale(warmup=2)"), torch.diag(torch.tensor([2.0, 8.0, 1.0]).double())
    for _ in range(3):
        pipe.combine(rows[:2], domains=["a", "b"])
    found = pipe.homogenize(rows, domains=["a", "b", "c"]).weights
    torch.testing.assert_close(found, inverse([2, 8, 1]))
    for factor in (2, 1000):
        found = pipe.homogenize(factor * rows, domains=["a", "b", "c"]).weights
        torch.testing.assert_close(found, inverse([2, 8, math.sqrt((1 + 2**2) / 2)]))


def test_the_warmup_begins_with_the_first_row_that_is_not_zero():
    rows = torch.diag(torch.tensor([2.0, 0.0, 8.0]).double())
    pipe = gradhomog.pipeline("peakscale(warmup=2)")
    torch.testing.assert_close(pipe.homogenize(0 * rows).weights, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(pipe.homogenize(rows).weights, inverse([2, 4, 8]))
    rows[1, 1] = 6.0
    torch.testing.assert_close(pipe.homogenize(rows).weights, inverse([2, 6, 8]))
    rows[1, 1] = 0.0
    torch.testing.assert_close(pipe.homogenize(rows).weights, inverse([2, math.sqrt(18), 8]))


@pytest.mark.parametrize("unit", [2.0**-60, 1.0, 2.0**60])
def test_one_long_gradient_at_any_step_of_the_warmup_counts_as_three_times_the_median(unit):
    # Seen: weights of 1.99 and .008 for good.
    steps = [rows * unit for rows in history(6, (1.0, 1.0))]
    for position in range(5):
        pipe = gradhomog.pipeline("peakscale(warmup=5, spacing=1000)")
        for index, rows in enumerate(steps):
            factors = torch.tensor([1000.0 if index == position else 1.0, 1.0], dtype=torch.float64)
            result = pipe.homogenize(factors[:, None] * rows)
        norms = torch.stack(steps[:5]).norm(dim=2).numpy()
        norms[position, 0] = 3 * np.sort(np.delete(norms[:, 0], position))[2]  # of five, the long one is the last
        torch.testing.assert_close(result.weights, inverse(np.sqrt(np.mean(norms**2, axis=0))))
        other = gradhomog.pipeline("peakscale(warmup=5, spacing=1000)")
        other.load_state_dict(pipe.state_dict())
        assert torch.equal(other.homogenize(steps[5]).weights, result.weights)


def test_weights_after_the_warmup_are_those_of_the_tasks_in_the_step_and_of_a_loaded_state():
    pipe, other = (gradhomog.pipeline("peakscale(warmup=1)") for _ in range(2))
    rows = torch.diag(torch.tensor([2.0, 8.0, 1.0]).double())
    pipe.combine(rows, domains=["a", "b", "c"])
    other.combine(4 * rows.flip(0), domains=["a", "b", "c"])
    for norms in ([2, 8, 1], [4, 32, 8]):
        for places in ([0, 1, 2], [2, 0], [0, 1, 2], [1]):
            found = pipe.homogenize(rows[places], domains=["abc"[place] for place in places]).weights
            torch.testing.assert_close(found, inverse(norms)[places])
            found.zero_()  # a caller's change does not reach later steps
        pipe.load_state_dict(other.state_dict())


def linear_problem(counts, scales, seed=0, params=6):
    """Residuals A_i θ − b_i of a linear model: the kernel of task i is A_i A_iᵀ."""
    theta = normal(params, seed=seed).requires_grad_()
    pairs = enumerate(zip(counts, scales, strict=True), start=1)
    maps = [scale * normal(count, params, seed=seed + task) for task, (count, scale) in pairs]
    residuals = [matrix @ theta - 1 for matrix in maps]
    return theta, maps, residuals, [r.square().mean() for r in residuals]


@pytest.mark.parametrize("scale", ["mean", "paper"])
def test_it_is_the_papers_formula_with_traces_over_numbers_of_residuals(scale):
    theta, maps, residuals, losses = linear_problem([4, 9, 16], [1.0, 30.0, 0.1])
    pipe = gradhomog.pipeline([("ntk", {"scale": scale})])
    gradhomog.backward(losses, pipe, parameters=[theta], residuals=residuals)
    traces = [float((matrix @ matrix.T).trace()) / len(matrix) for matrix in maps]
    weights = torch.tensor([sum(traces) / trace for trace in traces], dtype=torch.float64)
    rows = torch.stack([2 / len(m) * m.T @ r.detach() for m, r in zip(maps, residuals, strict=True)])
    expected = weights @ rows / (1.0 if scale == "paper" else weights.sum())
    torch.testing.assert_close(theta.grad, expected)


def test_traces_are_computed_in_every_nth_step_and_for_new_keys(monkeypatch):
    calls = []
    original = gradhomog.Step.kernel_traces
    monkeypatch.setattr(
        gradhomog.Step, "kernel_traces", lambda step, probes: calls.append(step.number) or original(step, probes)
    )
    pipe = gradhomog.pipeline("ntk(every=3)")
    rows, traces = torch.eye(2), [4.0, 1.0]
    for _ in range(7):
        pipe.combine(rows, domains=["a", "b"], kernel_traces=traces)
    assert calls == [0, 3, 6]
    weights = pipe.homogenize(rows, domains=["a", "c"], kernel_traces=torch.tensor([1.0, 1.0])).weights
    assert calls == [0, 3, 6, 7]
    assert weights.tolist() == [1, 1]
    assert gradhomog.pipeline("ntk").members[0].homogenizer.every == 100


def test_between_those_steps_it_needs_one_backward_pass_and_the_last_traces_count():
    net, pipe = nn.Linear(2, 1).double(), gradhomog.pipeline("ntk(every=2, probes=4)")
    passes, counts, weights = [], [], []
    net.weight.register_hook(passes.append)
    for seed in range(4):
        values = net(normal(30, 2, seed=seed)).flatten()
        residuals = [values[:20], 10 * values[20:]]
        losses = [r.square().mean() for r in residuals]
        weights.append(gradhomog.backward(losses, pipe, parameters=net, residuals=residuals).weights)
        counts.append(len(passes))
        passes.clear()
    assert counts == [9, 1, 9, 1]  # 2 tasks · 4 probes + 1
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_averages_are_those_of_the_traces():
    pipe, found = gradhomog.pipeline("ntk(every=1, average=0.75)"), []
    for traces in ([4.0, 1.0], [8.0, 1.0], [0.0, 5.0]):
        found.append(pipe.homogenize(torch.eye(2), kernel_traces=torch.tensor(traces)).measured["ntk"]["traces"])
    assert found == [[4, 1], [5, 1], [3.75, 2]]


def test_a_task_with_trace_zero_has_no_effect_on_the_others():
    rows = torch.tensor([[4.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
    found = gradhomog.pipeline("ntk").homogenize(rows, kernel_traces=torch.tensor([3.0, 1.0, 0.0]))
    assert found.weights.tolist() == [0.5, 1.5, 1.0]
    assert gradhomog.pipeline("ntk").homogenize(rows, kernel_traces=torch.zeros(3)).weights.tolist() == [1, 1, 1]


def test_traces_whose_inverses_overflow_give_finite_weights_or_raise_in_the_papers_scale():
    traces = torch.tensor([1e-310, 1.0], dtype=torch.float64)
    assert gradhomog.pipeline("ntk").homogenize(torch.eye(2), kernel_traces=traces).weights.tolist() == [2, 2e-310]
    with pytest.raises(gradhomog.OptionError, match=r"ntk.*: weights λ = Σ t / t must be at most .* task 0 has"):
        gradhomog.pipeline("ntk(scale='paper')").homogenize(torch.eye(2), kernel_traces=traces)
