"""MultiAdam against one `torch.optim.Adam` per task, its units, and the state of each key."""

import pytest
import torch

import gradhomog
from tests.plugins.rows import combine_in_tensors, normal

SCALES = torch.tensor([1e3, 1.0, 1e-3], dtype=torch.float64)[:, None]


def steps(count, params=6):
    return [SCALES * (normal(3, params, seed=seed) + 0.3) for seed in range(count)]


def adam_steps(history, beta1, beta2):
    """Return the last step of one Adam without ε for each task and the roots of its second moments."""
    quotients, roots = [], []
    for task in range(len(history[0])):
        variable = torch.zeros(history[0].shape[1], dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([variable], lr=1.0, betas=(beta1, beta2), eps=0.0)
        for rows in history:
            before, variable.grad = variable.detach().clone(), rows[task].clone()
            optimizer.step()
        quotients.append(before - variable.detach())
        roots.append((optimizer.state[variable]["exp_avg_sq"] / (1 - beta2 ** len(history))).sqrt())
    return torch.stack(quotients), torch.stack(roots)


@pytest.mark.parametrize(("beta1", "beta2"), [(0.99, 0.99), (0.9, 0.999), (0.0, 0.99), (0.5, 0.0)])
def test_in_the_papers_units_it_is_the_mean_of_one_adam_step_per_task(beta1, beta2):
    pipe = gradhomog.pipeline([("multiadam", {"beta1": beta1, "beta2": beta2, "units": "paper"})])
    history = steps(6)
    for rows in history:
        found = combine_in_tensors(pipe, rows)
    expected = adam_steps(history, beta1, beta2)[0].mean(0)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_by_default_every_coordinate_is_multiplied_by_the_root_mean_square_over_the_tasks(beta1):
    pipe, history = gradhomog.pipeline([("multiadam", {"beta1": beta1})]), steps(5)
    for rows in history:
        found = pipe.combine(rows)
    quotients, roots = adam_steps(history, beta1, 0.99)
    torch.testing.assert_close(found, quotients.mean(0) * roots.square().mean(0).sqrt(), rtol=1e-9, atol=1e-9)


def test_a_factor_of_one_loss_changes_no_direction_in_the_papers_units():
    pipes = [gradhomog.pipeline("multiadam(beta1=0.9, units='paper')") for _ in range(2)]
    for rows in steps(4):
        one, other = pipes[0].combine(rows), pipes[1].combine(rows * torch.tensor([[1e6], [1.0], [1e-6]]))
    torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_coordinates_that_were_zero_for_a_task_are_zero_in_its_row():
    rows = torch.tensor([[3.0, 0.0, 0.0], [4.0, 2.0, 0.0]], dtype=torch.float64)
    found = gradhomog.pipeline("multiadam").combine(rows)
    torch.testing.assert_close(found, torch.tensor([12.5**0.5, 0.5 * 2**0.5, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("unit", [1e-30, 1e30])
def test_squares_that_leave_the_range_of_float32_change_nothing(unit):
    pipes = [gradhomog.pipeline("multiadam") for _ in range(2)]
    for seed in range(3):
        rows = normal(2, 6, seed=seed).float()
        expected, found = pipes[0].combine(rows), pipes[1].combine(rows * unit)
    torch.testing.assert_close(found / unit, expected, rtol=1e-4, atol=1e-5)


def test_a_key_that_is_absent_keeps_its_moments_and_its_count():
    pipe = gradhomog.pipeline("multiadam(beta1=0.5)")
    rows = normal(2, 4)
    pipe.combine(rows, domains=["a", "b"])
    pipe.combine(rows[:1], domains=["a"])
    state = pipe.state_dict()["0:multiadam"]
    assert state["counts"] == {"a": 2, "b": 1}
    torch.testing.assert_close(state["means"][""]["b"], 0.5 * rows[1])
    torch.testing.assert_close(state["roots"][""]["b"], 0.1 * rows[1].abs())
