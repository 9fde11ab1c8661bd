"""MoCo against its recursion written out on the vectors, MGDA as its limit, and the effect of noise on both."""

import pytest
import scipy.optimize
import torch

import gradhomog
from tests.plugins.rows import normal


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
        found = pipe.combine({"a": rows[:, :4].reshape(4, 2, 2), "b": rows[:, 4:]})
    expected = recursion(steps, **options, relative=relative, paper=scale == "paper")
    torch.testing.assert_close(torch.cat([found["a"].flatten(), found["b"]]), expected, rtol=1e-9, atol=1e-10)


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
    assert state["weight_sums"] == {"a": 0.5, "b": 0.5}  # updated once
    assert state["counts"] == {"a": 1, "b": 1}
    assert state["weights"]["a"] * 2 + state["weights"]["b"] == pytest.approx(3)
    assert state["weights"]["a"] < 1 < state["weights"]["b"]
