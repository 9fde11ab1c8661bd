"""LRA against algorithm 1 and the authors' recursion written out, its fixed points, and its primary task."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError
from tests.plugins.rows import combine_in_tensors, normal


def loop(steps, alpha, weighted, primary=0):
    """Weights λ after all steps, one task after another, in Python floats."""
    weights = [1.0] * len(steps[0])
    for rows in steps:
        sizes = [[abs(entry) for entry in row] for row in rows.tolist()]
        numerator = max(sizes[primary])
        for task, entries in enumerate(sizes):
            if task != primary:
                mean = sum(entries) / len(entries) * (weights[task] if weighted else 1.0)
                weights[task] = (1 - alpha) * weights[task] + alpha * numerator / mean
    return torch.tensor(weights, dtype=torch.float64)


@pytest.mark.parametrize("scale", ["mean", "paper"])
@pytest.mark.parametrize(("alpha", "weighted"), [(0.1, True), (0.9, False), (1.0, True), (1.0, False)])
def test_it_is_the_recursion_written_out_with_the_weights_of_this_step(scale, alpha, weighted):
    options = {"alpha": alpha, "weighted": weighted, "scale": scale}
    pipe = gradhomog.pipeline([("lra", options)])
    steps = [normal(3, 8, seed=seed) * torch.tensor([[9.0], [1.0], [0.1]]) for seed in range(5)]
    for rows in steps:
        found = combine_in_tensors(pipe, rows)
    weights = loop(steps, alpha, weighted)
    expected = weights @ steps[-1] / (1.0 if scale == "paper" else weights.sum())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("rows", "scale", "limit"),
    [
        (torch.tensor([[1e200, 0.0], [0.0, 1e-200]], dtype=torch.float64), "mean", "1e\\+300"),
        (torch.tensor([[1e30, 0.0], [0.0, 1e-30]]), "paper", "1e\\+30"),
    ],
)
def test_weights_that_overflow_raise(rows, scale, limit):
    with pytest.raises(OptionError, match=f"lra: λ must be at most {limit}; task 1 has .*Multiply the loss of this"):
        gradhomog.pipeline(f"lra(scale='{scale}')").combine(rows)


def test_the_primary_task_is_named_by_slot_or_by_domain():
    rows, names = normal(3, 5), ["left", "right", "residual"]
    by_slot = gradhomog.pipeline("lra(primary=2)").combine(rows)
    by_name = gradhomog.pipeline("lra(primary='residual')").combine(rows, domains=names)
    assert torch.equal(by_slot, by_name)
    first = gradhomog.pipeline("lra").combine(rows[[2, 0, 1]])
    torch.testing.assert_close(first, by_slot)


def test_two_primary_tasks_of_one_domain_give_the_mean_of_their_largest_entries():
    rows = torch.tensor([[2.0, 0.0], [0.0, 6.0], [1.0, 1.0]], dtype=torch.float64)
    pipe = gradhomog.pipeline("lra(primary='pde', alpha=1)")
    assert pipe.homogenize(rows, domains=["pde", "pde", "wall"]).measured["lra"]["weights"] == [1, 1, 4]


def test_without_the_primary_task_weights_are_kept():
    rows = torch.tensor([[8.0, 0.0], [1.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    pipe = gradhomog.pipeline("lra(alpha=1, weighted=false)")
    pipe.combine(rows)
    later = pipe.homogenize(rows[1:], slots=[1, 2])
    assert later.measured["lra"]["weights"] == [8, 4]
    assert pipe.state_dict()["0:lra"]["weights"] == {"0": 1, "1": 8, "2": 4}


@pytest.mark.parametrize("zero", [0, 1])
def test_a_zero_row_changes_no_weight_of_its_own_and_a_zero_primary_row_changes_none(zero):
    rows = torch.tensor([[8.0, 0.0], [1.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    pipe = gradhomog.pipeline("lra(alpha=1, weighted=false)")
    pipe.combine(rows)
    rows[zero] = 0
    rows[2] *= 2
    assert pipe.homogenize(rows).measured["lra"]["weights"] == ([1, 8, 4] if zero == 0 else [1, 8, 2])
