"""NTK weights against the traces of exact kernels, the decrease of a linear model's residuals, and the schedule."""

import pytest
import torch
from torch import nn

import gradhomog
from tests.plugins.rows import normal


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


def test_more_points_of_one_task_do_not_change_its_weight():
    traces = []
    for copies in (1, 3):
        theta, _, residuals, _ = linear_problem([4, 5], [1.0, 10.0])
        residuals[1] = residuals[1].repeat(copies)
        losses = [r.square().mean() for r in residuals]
        step = gradhomog.backward(losses, gradhomog.pipeline("ntk"), parameters=[theta], residuals=residuals)
        traces.append(step.weights)
    torch.testing.assert_close(*traces)


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
    with pytest.raises(gradhomog.OptionError, match=r"ntk: λ = Σ t / t must be at most .* task 0 has"):
        gradhomog.pipeline("ntk(scale='paper')").homogenize(torch.eye(2), kernel_traces=traces)


def test_seeds_give_other_estimates_and_one_seed_the_same():
    found = []
    for seed in (0, 0, 1):
        theta, _, residuals, losses = linear_problem([30, 40], [1.0, 5.0])
        pipe = gradhomog.pipeline(f"ntk(probes=2, seed={seed})")
        found.append(gradhomog.backward(losses, pipe, parameters=[theta], residuals=residuals).weights)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
