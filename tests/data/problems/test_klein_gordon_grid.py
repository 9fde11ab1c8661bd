"""The Klein-Gordon equation on fixed points, with weights by statistics of gradients as in a notebook."""

import numpy as np
import pytest
import torch
from torch.autograd import grad

from gradhomog_data.problems.klein_gordon_grid import KleinGordonGrid
from tests.data.problems.conftest import problem_run

STEPS, EVERY = 7, 5


def written_out(points, state, centre, scale, statistic):
    """Parameters after some steps and λ after each, by nested derivatives and one λ for all conditions."""
    layers = [torch.nn.Linear(*weight.shape[::-1], dtype=torch.float64) for weight in list(state.values())[::2]]
    network = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.Tanh())))[:-1]
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), state.values(), strict=True):
            parameter.copy_(value)

    def u(inputs):
        return network((inputs - centre) / scale)[:, 0]

    def exact(inputs):
        t, x = inputs.detach().T
        return x * torch.cos(5 * np.pi * t) + (t * x) ** 3

    def losses():
        inside, start = points["pde"].clone().requires_grad_(), points["initial"].clone().requires_grad_()
        t, x = inside.detach().T
        values = u(inside)
        slopes = grad(values.sum(), inside, create_graph=True)[0]
        u_tt, u_xx = (grad(slopes[:, i].sum(), inside, create_graph=True)[0][:, i] for i in (0, 1))
        source = -25 * np.pi**2 * x * torch.cos(5 * np.pi * t) + 6 * t * x**3 - 6 * x * t**3 + exact(inside) ** 3
        residual = ((u_tt - u_xx + values**3 - source) ** 2).mean()
        left, right = points["boundary"].chunk(2)
        velocity = grad(u(start).sum(), start, create_graph=True)[0][:, 0]
        conditions = sum(((u(side) - exact(side)) ** 2).mean() for side in (left, right, start))
        return residual, conditions + (velocity**2).mean()

    def entries(loss):
        return torch.cat([g.flatten() for g in grad(loss, network.parameters(), retain_graph=True)]).numpy()

    optimizer, weight, weights = torch.optim.Adam(network.parameters(), lr=0.01), 1.0, []
    for step in range(STEPS):
        residual, conditions = losses()
        if step % EVERY == 0:
            r, b = entries(residual), entries(conditions)
            std_r, std_b = r.std(ddof=1), b.std(ddof=1)
            kurtosis_r, kurtosis_b = (((g - g.mean()) ** 4).mean() / g.std(ddof=1) ** 4 for g in (r, b))
            mean_r, mean_b, max_r = abs(r).mean(), abs(weight * b).mean(), abs(r).max()
            target = {
                "max": max_r / mean_b, "std": std_r / std_b, "std_plus_max": (std_r + max_r) / (std_b + mean_b),
                "std_times_mean": std_r * mean_r / (std_b * mean_b),
                "std_over_kurtosis": std_r / kurtosis_r / (std_b / kurtosis_b),
            }[statistic]  # fmt: skip
            weight = max(1.0, (weight + target) / 2)
        weights.append(weight)
        optimizer.zero_grad()
        (residual + weight * conditions).backward()
        optimizer.step()
    return dict(zip(state, network.parameters(), strict=True)), weights


@pytest.mark.parametrize("statistic", ["max", "std", "std_plus_max", "std_times_mean", "std_over_kurtosis"])
def test_steps_are_those_of_the_notebook_written_out(statistic):
    text = f'lra(alpha=0.5, statistic="{statistic}", every={EVERY}, minimum=1, scale="paper")'
    equation = KleinGordonGrid(problem_run(homogenizers=text), interior=30, boundary=4, depth=2, dtype="float64")
    network = equation.network
    state = {name: value.clone() for name, value in network.state_dict().items()}
    expected, weights = written_out(equation.points(3), state, network.centre, network.scale, statistic)
    optimizer = torch.optim.Adam(equation.parameters(), lr=0.01)
    found = [equation.step(index, optimizer, inspect=True).measured["lra"]["weights"] for index in range(STEPS)]
    np.testing.assert_allclose(found, [[1.0, weight] for weight in weights], rtol=1e-9)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-8, atol=1e-10)
    assert len({*weights}) == 2  # λ changes in the first and the sixth step


def test_the_least_weight_is_a_bound():
    text = 'lra(alpha=1, statistic="std", minimum=1e6, scale="paper")'
    equation = KleinGordonGrid(problem_run(homogenizers=text), interior=30, boundary=4, depth=1)
    report = equation.step(0, torch.optim.Adam(equation.parameters()), inspect=True)
    assert report.measured["lra"]["weights"] == [1, 1e6]


def test_points_are_of_the_test_grid_and_of_three_sides_and_standardize_the_inputs():
    equation = KleinGordonGrid(problem_run(), depth=5, state="last")
    points = {name: values.double().numpy() for name, values in equation.points(0).items()}
    assert all(torch.equal(equation.points(7)[name], values) for name, values in equation.points(0).items())
    inside = np.rint(points["pde"] * 99)
    np.testing.assert_allclose(points["pde"], inside / 99, atol=1e-7)
    assert len(np.unique(inside, axis=0)) == 1000
    line, zero, one = np.linspace(0, 1, 100), np.zeros(100), np.ones(100)
    sides = [np.stack(side, axis=1) for side in ((zero, line), (line, zero), (line, one), (one, line))]  # (t, x)
    np.testing.assert_allclose(np.concatenate([points["initial"], points["boundary"]]), np.concatenate(sides[:3]))
    every = np.concatenate([points["pde"], *sides])
    np.testing.assert_allclose(equation.network.centre, every.mean(0), rtol=1e-5)
    np.testing.assert_allclose(equation.network.scale, every.std(0), rtol=1e-5)
    state = equation.network.state_dict()
    hidden = torch.cat([state[f"layers.{number}.weight"] for number in range(1, 5)])
    assert float(hidden.std()) == pytest.approx(5 / 3 * (2 / 32) ** 0.5, rel=0.1)
    assert len(state) == 12
