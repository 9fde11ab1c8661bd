"""ExcessMTL against the authors' recursion written out."""

import pytest
import torch

import gradhomog
from tests.plugins.rows import combine_in_tensors, normal


def recursion(steps, lr):
    """The authors' code without its epsilon: the weights, of sum N, after the last step."""
    squares, weights, first = torch.zeros_like(steps[0]), torch.ones(len(steps[0]), dtype=torch.float64), None
    for rows in steps:
        squares = squares + rows**2
        excess = (rows**2 / squares.sqrt()).sum(1)
        if first is None:
            first = excess
        else:
            weights = weights * torch.exp(lr * excess / first)
            weights = weights / weights.sum() * len(weights)
    return weights


@pytest.mark.parametrize("lr", [0.01, 0.5])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_it_is_the_authors_recursion_with_the_weights_of_the_step_before(lr, count):
    pipe = gradhomog.pipeline([("excess_mtl", {"lr": lr})])
    steps = [normal(3, 8, seed=s) * (1 + 0.2 * torch.arange(3.0).double()[:, None] * s) for s in range(count)]
    last = normal(3, 8, seed=99)
    for rows in (*steps, last):
        found = combine_in_tensors(pipe, rows)
    expected = recursion(steps, lr) @ last / 3
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_the_first_step_moves_no_weight_however_many_parameters():
    rows, pipe = normal(4, 100_000, dtype=torch.float32), gradhomog.pipeline("excess_mtl")
    first, later = torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([3.0, 1.0, 2.0, 0.1])
    assert torch.equal(pipe.homogenize(rows).weights.float(), first)
    assert torch.equal(pipe.homogenize(rows * later[:, None]).weights.float(), first)
    assert pipe.homogenize(rows).weights.argsort().tolist() == [3, 1, 2, 0]


def test_neither_a_tasks_own_size_nor_that_of_all_moves_a_weight():
    pipes = [gradhomog.pipeline("excess_mtl(lr=0.3)") for _ in range(3)]
    factors = [torch.ones(3), torch.full((3,), 2.0**59), torch.tensor([1.0, 2.0**-50, 2.0**40])]
    for step in range(5):
        rows = normal(3, 9, seed=step).float()
        found = [pipe.homogenize(rows * f[:, None]).weights for pipe, f in zip(pipes, factors, strict=True)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[2], found[0], rtol=1e-6, atol=0)


def test_a_task_without_gradient_so_far_keeps_its_weight_and_begins_when_it_has_one():
    rows = torch.eye(2, dtype=torch.float64)
    pipe = gradhomog.pipeline("excess_mtl(lr=0.5)")
    for _ in range(3):
        pipe.combine(torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64))
    state = pipe.state_dict()["0:excess_mtl"]
    assert list(state["first"]) == ["0"]
    pipe.combine(rows)
    assert pipe.state_dict()["0:excess_mtl"]["first"]["1"] == 1
    assert torch.isfinite(pipe.combine(rows)).all()


def test_a_task_whose_first_gradient_was_tiny_does_not_end_the_others_for_good():
    pipe = gradhomog.pipeline("excess_mtl(lr=1)")
    pipe.combine(torch.diag(torch.tensor([1e-6, 1.0])))
    for _ in range(3):
        pipe.combine(torch.eye(2))
    assert 0 < float(pipe.homogenize(torch.eye(2)).weights[1]) < 0.01
    for _ in range(60):  # it has converged
        weights = pipe.homogenize(torch.diag(torch.tensor([1e-9, 1.0]))).weights
    assert float(weights[1]) > 0.5
