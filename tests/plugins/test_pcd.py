"""PCD against quadratic programs on the rows, and rows that cancel."""

import math

import numpy as np
import pytest
import quadprog
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gradhomog
from gradhomog.testing import jacobians
from tests.plugins.rows import both_dtypes, normal


def combine(rows, create_graph=False, domains=None, **options):
    return gradhomog.pipeline([("pcd", options)]).combine(rows, create_graph=create_graph, domains=domains)


def program(rows, taus, primary=0):
    """The program in the space of parameters, for rows divided by their norms (the first step), scaled to ‖g_1‖."""
    units = (rows / rows.norm(dim=1, keepdim=True)).double().numpy()
    others = [place for place in range(len(rows)) if place != primary]
    bounds = np.asarray([taus[place] for place in others], dtype=float)
    solution = quadprog.solve_qp(np.eye(rows.shape[1]), units[primary], units[others].T, bounds)[0]
    return torch.from_numpy(solution / np.linalg.norm(solution)) * rows[primary].double().norm()


@given(jacobians(tasks=(2, 6), params=(7, 12), spread=2, zero=False, duplicate=False, opposite=False), st.data())
def test_every_other_task_receives_its_share_and_no_more_than_necessary(rows, data):
    units = rows / rows.norm(dim=1, keepdim=True)
    assume(float(torch.linalg.cond(units)) < 100)
    taus = [data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])) for _ in rows]
    primary = data.draw(st.integers(0, len(rows) - 1))
    expected = program(rows, taus, primary)
    assume(bool(expected.isfinite().all()))
    found = combine(rows, tau=taus, primary=primary)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7 * float(rows[primary].norm()))


def test_all_steps_until_now_have_nearly_the_same_weight_in_the_first_of_them():
    # v̂ is the mean of the squares at first; an average that starts at its first value would follow it for long.
    pipe, rows = gradhomog.pipeline("pcd(tau=0.5)"), torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    for norm in (1.0, 3.0, 5.0):
        direction = pipe.combine(rows * torch.tensor([[1.0], [norm]]))
    share = 0.5 * 5.0 / math.sqrt((1 + 9 + 25) / 3)
    torch.testing.assert_close(direction[1] / direction[0], torch.tensor(share, dtype=torch.float64), rtol=1e-3, atol=0)


def test_a_factor_of_another_loss_has_no_effect_and_one_of_the_primary_loss_only_on_the_length():
    rows, plain, scaled = normal(3, 6), gradhomog.pipeline("pcd(tau=0.3)"), gradhomog.pipeline("pcd(tau=0.3)")
    factors = torch.tensor([[4.0], [1e-9], [1e9]], dtype=torch.float64)
    for step in range(3):
        each = rows + normal(3, 6, seed=step + 1)
        torch.testing.assert_close(scaled.combine(factors * each), 4 * plain.combine(each))


@pytest.mark.parametrize("count", [2, 3, 4, 6])
@both_dtypes
def test_exclusive_constraints_of_rows_that_cancel_together_are_ignored(count, dtype):
    others = normal(count, 9, seed=count) * torch.logspace(0, 2, count, dtype=torch.float64)[:, None]
    others[-1] = -others[:-1].sum(0)
    rows = torch.cat([normal(1, 9), others]).to(dtype)
    torch.testing.assert_close(combine(rows, tau=0.1), rows[0])


@both_dtypes
def test_with_tau_zero_opposite_rows_leave_the_part_of_the_primary_row_that_is_orthogonal_to_them(dtype):
    rows = normal(3, 20).to(dtype)
    rows[2] = -3 * rows[1]
    rest = rows[0] - (rows[0] @ rows[1]) / (rows[1] @ rows[1]) * rows[1]
    expected = rest / rest.norm() * rows[0].norm()
    torch.testing.assert_close(combine(rows, tau=0.0), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("angle", [1e-1, 1e-2])
def test_nearly_opposite_float32_rows_are_resolved_down_to_a_tenth_of_a_degree(angle):
    basis = torch.linalg.qr(normal(1000, 3))[0].T
    rows = torch.stack([basis[0] + basis[1], basis[1] + angle * basis[2], -basis[1] + angle * basis[2]])
    expected = program(rows, [0.1] * 3)
    torch.testing.assert_close(combine(rows.float(), tau=0.1).double(), expected, rtol=0, atol=1e-2)
    torch.testing.assert_close(combine(rows, tau=0.1), expected, rtol=0, atol=1e-6)


def test_an_opposite_row_gives_zero_for_tau_zero_and_its_own_direction_above():
    row = normal(1000).float()
    rows = torch.stack([row, -2 * row])
    assert combine(rows, tau=0.0).tolist() == [0.0] * 1000
    torch.testing.assert_close(combine(rows, tau=0.1), -row)


def test_zero_rows():
    rows = torch.cat([normal(2, 5), torch.zeros(1, 5)])
    rows[1] -= rows[0]
    torch.testing.assert_close(combine(rows, tau=0.3), combine(rows[:2], tau=0.3))
    assert combine(rows, primary=2).tolist() == [0.0] * 5
    assert combine(torch.zeros(3, 5)).tolist() == [0.0] * 5
    torch.testing.assert_close(combine(rows[:1]), rows[0])


def test_the_primary_task_is_found_by_slot_or_domain():
    rows, domains = normal(3, 6), ["data", "physics", "sparse"]
    rows[1:] -= rows[0]
    expected = combine(rows[[1, 0, 2]], tau=[0.0, 0.1, 0.4])
    torch.testing.assert_close(combine(rows, primary=1, tau=[0.1, 0.9, 0.4]), expected)
    shares = {"data": 0.1, "*": 0.4}
    torch.testing.assert_close(combine(rows, primary="physics", tau=shares, domains=domains), expected)
    torch.testing.assert_close(
        combine(rows, primary="physics", tau={"data": 0.1}, domains=domains),
        combine(rows[[1, 0, 2]], tau=[0.0, 0.1, 0.0]),
    )


@pytest.mark.parametrize("second", [[1.0, 1.0], [0.0, 0.0]])
def test_without_active_constraints_the_derivative_is_that_of_the_primary_row(second):
    rows = torch.tensor([[1.0, 0.0], second], dtype=torch.float64, requires_grad=True)
    [slope] = torch.autograd.grad(combine(rows, create_graph=True).sum(), rows)
    assert slope.tolist() == [[1.0, 1.0], [0.0, 0.0]]
