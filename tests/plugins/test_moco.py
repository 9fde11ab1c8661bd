"""MoCo against its recursion written out on the vectors, MGDA as its limit, and the effect of noise on both."""

import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog_plugins.moco import project_onto_simplex
from tests.plugins.rows import combine_in_tensors, normal


def onto_simplex(values):
    low, high = float(values.min()) - 1, float(values.max())
    threshold = scipy.optimize.brentq(lambda t: float((values - t).clamp_min(0).sum()) - 1, low, high, xtol=1e-15)
    return (values - threshold).clamp_min(0)


def recursion(steps, beta, beta_decay, gamma, gamma_decay, rho, relative, paper):
    """The paper's algorithm 1 on the vectors: the direction of the last step."""
    tracked, lost = torch.zeros_like(steps[0]), 1.0
    weights = torch.full((len(steps[0]),), 1 / len(steps[0]), dtype=torch.float64)
    for count, rows in enumerate(steps, start=1):
        rate = beta / count**beta_decay
        tracked = tracked - rate * (tracked - rows)
        lost *= 1 - rate
        corrected = tracked / (1 - lost)
        direction = weights @ (tracked if paper else corrected)
        square = corrected @ corrected.T if relative else tracked @ tracked.T
        size = square.trace() / len(rows) if relative else 1.0
        gradient = (square / size + rho * torch.eye(len(rows), dtype=torch.float64)) @ weights
        weights = onto_simplex(weights - gamma / count**gamma_decay * gradient)
    return direction


@pytest.mark.parametrize("scale", ["mean", "paper"])
@pytest.mark.parametrize(("relative", "gamma", "rho"), [(True, 0.7, 0.0), (False, 0.02, 0.0), (True, 0.3, 0.5)])
@pytest.mark.parametrize(("beta", "beta_decay", "gamma_decay"), [(0.5, 0.5, 0.5), (1.0, 0.0, 0.0)])
def test_it_is_algorithm_1_written_out(scale, relative, gamma, rho, beta, beta_decay, gamma_decay):
    options = {"beta": beta, "beta_decay": beta_decay, "gamma": gamma, "gamma_decay": gamma_decay, "rho": rho}
    pipe = gradhomog.pipeline([("moco", {**options, "relative": relative, "scale": scale})])
    steps = [normal(4, 6, seed=seed) + 0.5 for seed in range(8)]
    for rows in steps:
        found = combine_in_tensors(pipe, rows)
    expected = recursion(steps, **options, relative=relative, paper=scale == "paper")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_state_by_domain_follows_the_domain_and_keeps_its_proportion():
    rows = torch.diag(torch.tensor([4.0, 1.0, 1.0], dtype=torch.float64))
    pipe = gradhomog.pipeline("moco(gamma=0.5)")
    for _ in range(3):
        pipe.combine(rows, domains=["big", "small", "other"])
    held = dict(pipe.state_dict()["0:moco"]["weights"])
    pipe.combine(rows[:2].flip(0), domains=["small", "big"])
    after = pipe.state_dict()["0:moco"]["weights"]
    assert after["other"] == held["other"]
    assert after["small"] + after["big"] == pytest.approx(held["small"] + held["big"])
    assert after["small"] >= held["small"] > held["big"] >= after["big"]


def test_two_tasks_of_one_domain_share_a_weight_and_an_average():
    pipe = gradhomog.pipeline("moco(beta=0.5, beta_decay=0, gamma=0.2)")
    rows = torch.tensor([[5.0, 0.0], [0.0, 5.0], [1.0, 1.0]], dtype=torch.float64)
    pipe.combine(rows, domains=["a", "a", "b"])
    state = pipe.state_dict()["0:moco"]
    torch.testing.assert_close(state["averages"][""]["a"], rows[:2].mean(0))
    assert (state["weight_sums"], state["counts"]) == ({"a": 0.5, "b": 0.5}, {"a": 1, "b": 1})  # updated once
    assert state["weights"]["a"] * 2 + state["weights"]["b"] == pytest.approx(3)


# -- the projection of its weights -----------------------------------------------------------------------------------

vectors = st.lists(st.floats(-5, 5), min_size=1, max_size=7).map(lambda v: torch.tensor(v, dtype=torch.float64))


@given(vectors)
def test_the_projection_is_on_the_simplex_and_no_point_of_it_is_nearer(values):
    found = project_onto_simplex(values)
    assert (found >= 0).all()
    assert abs(float(found.sum()) - 1) < 1e-12
    # x is nearest if and only if ⟨e − x, v − x⟩ ≤ 0 for every corner e of the simplex.
    towards = torch.eye(len(values), dtype=torch.float64) - found
    assert (towards @ (values - found) <= 1e-12).all()


@pytest.mark.parametrize("shift", [0.0, 1e3, -1e15, 1e18])
def test_a_constant_added_to_all_values_changes_nothing(shift):
    values = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64) * (1 if abs(shift) < 1e4 else 0)
    expected = values if abs(shift) < 1e4 else torch.full_like(values, 1 / 3)
    torch.testing.assert_close(project_onto_simplex(values + shift), expected, rtol=0, atol=1e-12)


def test_huge_differences_give_a_corner_and_minus_infinity_gives_zero():
    assert project_onto_simplex(torch.tensor([-1e30, 1e30, 0.0])).tolist() == [0.0, 1.0, 0.0]
    assert project_onto_simplex(torch.tensor([0.0, -torch.inf, 0.0])).tolist() == [0.5, 0.0, 0.5]
