"""Differential equations: the solution has no residual, points lie where they should, and losses are sums of means."""

import math

import numpy as np
import pytest
import torch

from gradhomog_data.problems.burgers import VISCOSITY, Burgers
from gradhomog_data.problems.helmholtz import Helmholtz
from gradhomog_data.problems.klein_gordon import KleinGordon
from gradhomog_data.problems.pinn.equation import CONDITIONS, PDE, latin_hypercube, make_grid, uniform
from tests.data.problems.conftest import problem_run

EQUATIONS = {"helmholtz": Helmholtz, "burgers": Burgers, "klein_gordon": KleinGordon}


def equation_with(name, network=None, **options):
    """An equation with a function in place of its network, by default the solution."""
    equation = EQUATIONS[name](problem_run(), **options)
    equation.network = network or Exact(equation)
    return equation


class Exact:
    """The solution in place of a network; derivatives by finite differences of fourth order in float64."""

    def __init__(self, equation, step=2e-4):
        self.equation, self.step = equation, step

    def __call__(self, points, first_order=0, second_order=0):
        def u(axis=0, factor=0):
            shifted = points.numpy().astype(np.float64)
            shifted[:, axis] += factor * self.step
            return torch.from_numpy(self.equation.solution(shifted))

        first = [(-u(i, 2) + 8 * u(i, 1) - 8 * u(i, -1) + u(i, -2)) / (12 * self.step) for i in range(first_order)]
        second = [
            (-u(i, 2) + 16 * u(i, 1) - 30 * u() + 16 * u(i, -1) - u(i, -2)) / (12 * self.step**2)
            for i in range(second_order)
        ]
        return torch.stack([u(), *first, *second])


def drawn(equation, seed=0):
    points = equation.draw(np.random.default_rng(seed))
    return {key: torch.from_numpy(value) for key, value in points.items()}


@pytest.mark.parametrize("name", ["helmholtz", "klein_gordon"])
def test_the_solution_has_no_residual_in_any_task(name):
    equation = equation_with(name, conditions="separate")
    points = drawn(equation)
    for task in equation.tasks:
        residual = equation.residual(task, points)
        assert residual.abs().max() < (1e-4 if task == PDE else 1e-7)  # sources are of the order of 100


def test_the_solution_of_burgers_equation_has_no_residual_away_from_its_front():
    equation = equation_with("burgers", conditions="separate")
    points = drawn(equation)
    inside = points[PDE]
    points[PDE] = inside[(inside[:, 0].abs() > 0.05) & (inside[:, 1] > 0.01)]
    for task in equation.tasks:
        residual = equation.residual(task, points)
        assert residual.abs().max() < (1e-4 if task == PDE else 1e-9)


def test_the_residual_of_another_function_is_that_of_its_formula():
    """u = x²y³ and u = t²x³: derivatives by hand."""

    def helmholtz(points, first_order=0, second_order=0):
        x, y = points.T
        return torch.stack([x**2 * y**3, 2 * x * y**3, 3 * x**2 * y**2, 2 * y**3, 6 * x**2 * y])[
            : 1 + first_order + second_order
        ]

    def burgers(points, first_order=0, second_order=0):
        x, t = points.T
        return torch.stack([x**2 * t**3, 2 * x * t**3, 3 * x**2 * t**2, 2 * t**3])[: 1 + first_order + second_order]

    inside = torch.tensor([[0.25, -0.5], [0.75, 0.5]], dtype=torch.float64)
    x, y = inside.T
    source = (1 - 17 * math.pi**2) * torch.sin(math.pi * x) * torch.sin(4 * math.pi * y)
    expected = 2 * y**3 + 6 * x**2 * y + x**2 * y**3 - source
    torch.testing.assert_close(equation_with("helmholtz", helmholtz).pde(inside), expected)
    expected = 3 * x**2 * y**2 + x**2 * y**3 * 2 * x * y**3 - VISCOSITY * 2 * y**3
    torch.testing.assert_close(equation_with("burgers", burgers).pde(inside), expected)


@pytest.mark.parametrize("name", EQUATIONS)
def test_the_merged_loss_is_the_sum_of_the_losses_of_the_conditions(name):
    equation = equation_with(name)
    points = drawn(equation)
    for values in points.values():  # other points than those of the conditions, so that losses are not zero
        values *= 0.9
    total = sum(equation.residual(task, points).square().mean() for task in equation.parts)
    torch.testing.assert_close(equation.residual(CONDITIONS, points).square().mean(), total)


def test_losses_of_conditions_are_sums_of_means_over_their_parts():
    def network(points, first_order=0, second_order=0):
        return torch.stack([points[:, 0] * 2, points[:, 0] + 1])[: 1 + first_order]

    points = {"boundary": torch.tensor([[0.5, 0.0]] * 2 + [[1.0, 0.0]] * 2 + [[2.0, 0.0]] * 2 + [[0.0, 0.0]] * 2)}
    loss = equation_with("helmholtz", network).residual("boundary", points).square().mean()
    assert float(loss) == pytest.approx(1 + 4 + 16 + 0)
    points = {"initial": torch.tensor([[0.0, 0.5], [0.0, 1.0]])}
    loss = equation_with("klein_gordon", network).residual("initial", points).square().mean()
    assert float(loss) == pytest.approx((0.25 + 1) / 2 + 1)


@pytest.mark.parametrize("name", EQUATIONS)
def test_points_lie_in_the_box_and_those_of_conditions_on_its_sides(name):
    equation = equation_with(name, interior=70, boundary=9)
    points = drawn(equation)
    assert set(points) == {PDE, *equation.parts}
    assert len(points[PDE]) == 70
    low, high = torch.tensor(equation.lower), torch.tensor(equation.upper)
    for key, values in points.items():
        assert ((values >= low) & (values <= high)).all()
        on_side = ((values == low) | (values == high)).any(1)
        assert on_side.all() == (key != PDE)
    assert len(points["boundary"]) == 9 * (4 if name == "helmholtz" else 2)


def test_a_latin_hypercube_has_one_point_in_each_interval_and_uniform_points_do_not():
    random = np.random.default_rng(0)
    points = latin_hypercube(random, 50, (-1, 0), (1, 1))
    for axis, low, width in ((0, -1, 2 / 50), (1, 0, 1 / 50)):
        assert sorted(((points[:, axis] - low) / width).astype(int).tolist()) == list(range(50))
    independent = uniform(random, 50, (-1, 0), (1, 1))
    assert len(set((independent[:, 1] * 50).astype(int).tolist())) < 50
    assert (uniform(random, 5, (0, 1), (1, 1))[:, 1] == 1).all()


def test_a_grid_includes_the_sides_and_centres_of_cells_do_not():
    points = make_grid((-1, 0), (1, 1), (3, 2))
    assert points.tolist() == [[-1, 0], [-1, 1], [0, 0], [0, 1], [1, 0], [1, 1]]
    assert make_grid((-1, 0), (1, 1), (3, 2), cells=True).tolist() == [[-0.5, 0.5], [0.5, 0.5]]
