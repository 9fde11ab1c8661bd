"""Physics-informed problems: equations, derivatives of the network, training, and the solution of Burgers' equation."""

import copy
import itertools
import math
import sys

import numpy as np
import pytest
import torch
from scipy.integrate import quad

import gradhomog
from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.comparison import dry_run
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.trainer import make_optimizer, make_trainable
from gradhomog_data.problems._tanh_network import TanhNetwork, value_and_derivatives
from gradhomog_data.problems.klein_gordon_grid import KleinGordonGrid
from gradhomog_data.problems.pinn import (
    PDE,
    VISCOSITY,
    Burgers,
    Helmholtz,
    KleinGordon,
    LowestLoss,
    Poisson,
    burgers_solution,
    latin_hypercube,
    uniform,
)
from tests.data.problems.conftest import problem_run
from tests.experiments.run_helpers import trainer

EQUATIONS = {
    "burgers": Burgers, "helmholtz": Helmholtz, "klein_gordon": KleinGordon, "klein_gordon_grid": KleinGordonGrid,
    "poisson": Poisson,
}  # fmt: skip
REDRAWN = ["burgers", "helmholtz", "klein_gordon"]


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


@pytest.mark.parametrize(
    ("name", "bound"),
    [("helmholtz", 1e-7), ("klein_gordon", 1e-7), ("klein_gordon_grid", 1e-7), ("burgers", 1e-9), ("poisson", 1e-9)],
)
def test_the_solution_has_no_residual_in_any_task(name, bound):
    equation = equation_with(name, conditions="separate")
    points = drawn(equation)
    if name == "burgers":  # away from its front
        inside = points[PDE]
        points[PDE] = inside[(inside[:, 0].abs() > 0.05) & (inside[:, 1] > 0.01)]
    for task in equation.tasks:
        residual = equation.residual(task, points)
        assert residual.abs().max() < (1e-4 if task == PDE else bound)  # sources are of the order of 100


def test_the_residual_of_another_function_is_that_of_its_formula():
    """u = x²y³, with derivatives by hand; Burgers' residual is compared in the textbook loop of training."""

    def helmholtz(points, first_order=0, second_order=0):
        x, y = points.T
        return torch.stack([x**2 * y**3, 2 * x * y**3, 3 * x**2 * y**2, 2 * y**3, 6 * x**2 * y])[
            : 1 + first_order + second_order
        ]

    inside = torch.tensor([[0.25, -0.5], [0.75, 0.5]], dtype=torch.float64)
    x, y = inside.T
    source = (1 - 17 * math.pi**2) * torch.sin(math.pi * x) * torch.sin(4 * math.pi * y)
    expected = 2 * y**3 + 6 * x**2 * y + x**2 * y**3 - source
    torch.testing.assert_close(equation_with("helmholtz", helmholtz).pde(inside), expected)


def test_losses_of_conditions_are_sums_of_means_over_their_parts():
    def network(points, first_order=0, second_order=0):
        return torch.stack([points[:, 0] * 2, points[:, 0] + 1])[: 1 + first_order]

    points = {"boundary": torch.tensor([[0.5, 0.0]] * 2 + [[1.0, 0.0]] * 2 + [[2.0, 0.0]] * 2 + [[0.0, 0.0]] * 2)}
    loss = equation_with("helmholtz", network).residual("boundary", points).square().mean()
    assert float(loss) == pytest.approx(1 + 4 + 16 + 0)
    points = {"initial": torch.tensor([[0.0, 0.5], [0.0, 1.0]])}
    loss = equation_with("klein_gordon", network).residual("initial", points).square().mean()
    assert float(loss) == pytest.approx((0.25 + 1) / 2 + 1)


@pytest.mark.parametrize("name", REDRAWN)
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


def test_the_points_of_poissons_equation_are_those_of_a_grid_in_every_step():
    first, second = (drawn(equation_with("poisson"), seed) for seed in (0, 1))
    assert all(torch.equal(values, second[key]) for key, values in first.items())
    inside, sides = first[PDE], first["boundary"]
    assert (len(inside), len(sides)) == (28**2, 4 * 29)
    assert ((inside > 0) & (inside < 1)).all()
    assert ((sides == 0) | (sides == 1)).any(1).all()
    assert len(sides.unique(dim=0)) == len(sides)


def test_a_latin_hypercube_has_one_point_in_each_interval_and_uniform_points_do_not():
    random = np.random.default_rng(0)
    points = latin_hypercube(random, 50, (-1, 0), (1, 1))
    for axis, low, width in ((0, -1, 2 / 50), (1, 0, 1 / 50)):
        assert sorted(((points[:, axis] - low) / width).astype(int).tolist()) == list(range(50))
    independent = uniform(random, 50, (-1, 0), (1, 1))
    assert len(set((independent[:, 1] * 50).astype(int).tolist())) < 50
    assert (uniform(random, 5, (0, 1), (1, 1))[:, 1] == 1).all()


def make_layers(sizes, dtype):
    random = torch.Generator().manual_seed(0)
    shapes = [(outputs, inputs) for inputs, outputs in itertools.pairwise(sizes)]
    weights = [torch.randn(shape, generator=random, dtype=dtype).requires_grad_() for shape in shapes]
    biases = [torch.randn(shape[0], generator=random, dtype=dtype).requires_grad_() for shape in shapes]
    return weights, biases


def nested(inputs, weights, biases, first_order, second_order):
    """The value by plain operations, first and second derivatives by automatic differentiation of it."""
    inputs = inputs.clone().requires_grad_()
    value = inputs
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        value = torch.tanh(value @ weight.T + bias)
    value = (value @ weights[-1].T + biases[-1])[:, 0]
    (first,) = torch.autograd.grad(value.sum(), inputs, create_graph=True)
    second = [torch.autograd.grad(first[:, i].sum(), inputs, create_graph=True)[0][:, i] for i in range(second_order)]
    return torch.stack([value, *first.T[:first_order], *second])


CASES = [(first_order, second_order) for first_order in range(3) for second_order in range(first_order + 1)]


@pytest.mark.parametrize("sizes", [(2, 6, 1), (2, 7, 5, 1), (2, 4, 4, 4, 4, 1)])
@pytest.mark.parametrize(("first_order", "second_order"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-4)])
def test_values_and_gradients_are_those_of_nested_differentiation(sizes, first_order, second_order, dtype, tolerance):
    weights, biases = make_layers(sizes, dtype)
    inputs = torch.randn(9, 2, generator=torch.Generator().manual_seed(1), dtype=dtype)
    actual = value_and_derivatives(inputs, weights, biases, first_order, second_order)
    expected = nested(inputs, weights, biases, first_order, second_order)
    assert actual.shape == (1 + first_order + second_order, 9)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    factors = torch.randn(actual.shape, generator=torch.Generator().manual_seed(2), dtype=dtype)
    gradients = [
        torch.autograd.grad((result.square() * factors).sum(), [*weights, *biases]) for result in (actual, expected)
    ]
    scale = max(float(gradient.abs().max()) for gradient in gradients[1])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)


def test_second_derivatives_w_r_t_weights_are_those_of_finite_differences():
    weights, biases = make_layers((2, 3, 1), torch.float64)
    inputs = torch.randn(4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def residuals(*parameters):
        return value_and_derivatives(inputs, parameters[:2], parameters[2:], first_order=2, second_order=1)

    assert torch.autograd.gradgradcheck(residuals, (*weights, *biases))


@pytest.mark.parametrize("standardize", [True, False])
def test_derivatives_of_the_network_are_w_r_t_the_coordinates_of_the_box(standardize):
    network = TanhNetwork(
        (-1, 2), (3, 8), 5, 2, standardize=standardize, generator=torch.Generator().manual_seed(0)
    ).double()
    points = torch.tensor([[-0.5, 3.0], [2.0, 7.5]], dtype=torch.float64)
    u, u_x, u_y, u_xx, u_yy = network(points, first_order=2, second_order=2)
    step = 1e-4
    for axis, first, second in ((0, u_x, u_xx), (1, u_y, u_yy)):
        shift = torch.zeros(2, dtype=torch.float64)
        shift[axis] = step
        above, below = network(points + shift)[0], network(points - shift)[0]
        torch.testing.assert_close(first, (above - below) / (2 * step), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(second, (above - 2 * u + below) / step**2, rtol=1e-5, atol=1e-6)


def test_standardized_points_of_the_box_have_mean_0_and_standard_deviation_1():
    network = TanhNetwork((-1, 2), (3, 8), 5, 2, standardize=True, generator=torch.Generator())
    points = torch.rand(100_000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([4.0, 6.0])
    standardized = (points + torch.tensor([-1.0, 2.0]) - network.centre) / network.scale
    torch.testing.assert_close(standardized.mean(0), torch.zeros(2), rtol=0, atol=0.02)
    torch.testing.assert_close(standardized.std(0), torch.ones(2), rtol=0.02, atol=0)


TINY = [
    "network.width=6", "problem.depth=2", "problem.interior=20", "problem.boundary=4", "train.steps=6",
    "train.validate_every=2", "train.checkpoint_every=3", "train.log_every=1", "train.lr_decay_every=2",
]  # fmt: skip


def config(name, *overrides):
    return load(None, [f"problem.name={name}", *TINY, *overrides])


def trainable(name, *overrides, homogenizers="none", seed=0):
    return make_trainable(config(name, *overrides), Run(name, homogenizers, seed))


@pytest.mark.parametrize("name", REDRAWN)
def test_points_are_a_function_of_seed_and_step(name):
    one, other, seeded = (trainable(name, seed=seed) for seed in (0, 0, 1))
    optimizer = make_optimizer(config(name), one)
    for index in range(3):
        one.step(index, optimizer, inspect=False)
    for index in (0, 7):
        for key, values in one.points(index).items():
            assert torch.equal(values, other.points(index)[key])
            assert values.dtype == torch.float32
            assert not torch.equal(values, one.points(index + 1)[key])
            assert not torch.equal(values, seeded.points(index)[key])


def test_all_methods_start_from_the_same_network_and_other_seeds_from_another():
    networks = [
        trainable("burgers", homogenizers=text, seed=seed).network.state_dict()
        for text, seed in (("none", 0), ("upgrad", 0), ("none", 1))
    ]
    for key, value in networks[0].items():
        assert torch.equal(value, networks[1][key])
    assert not torch.equal(networks[0]["layers.0.weight"], networks[2]["layers.0.weight"])
    assert networks[0]["layers.1.bias"].tolist() == [0] * 6


def test_initial_weights_have_the_standard_deviation_of_glorot_and_bengio():
    network = trainable("helmholtz", "network.width=300").network
    assert float(network.layers[0].weight.detach().std()) == pytest.approx(math.sqrt(2 / 302), rel=0.1)
    assert float(network.layers[1].weight.detach().std()) == pytest.approx(math.sqrt(2 / 600), rel=0.02)


def test_the_plain_network_is_trained_by_adam_on_the_mean_of_both_losses_with_decaying_rate(tmp_path):
    """The textbook loop with nested differentiation."""
    settings = config("burgers", "problem.state=last")
    records = []
    training = trainer(settings, Run("burgers", "none", 0), tmp_path, records)
    start = copy.deepcopy(training.trainable.network)
    training.train_and_test()

    net = torch.nn.Sequential(*[part for layer in start.layers for part in (layer, torch.nn.Tanh())][:-1])
    adam = torch.optim.Adam(net.parameters(), lr=0.001)
    schedule = torch.optim.lr_scheduler.StepLR(adam, step_size=2, gamma=0.9)
    losses = []
    for index in range(6):
        points = training.trainable.points(index)
        inside = points["pde"].requires_grad_()
        u = net(inside)
        (slope,) = torch.autograd.grad(u.sum(), inside, create_graph=True)
        (second,) = torch.autograd.grad(slope[:, 0].sum(), inside, create_graph=True)
        residual = slope[:, 1] + u[:, 0] * slope[:, 0] - 0.01 / math.pi * second[:, 0]
        initial = net(points["initial"])[:, 0] + torch.sin(math.pi * points["initial"][:, 0])
        pde = residual.square().mean()
        conditions = initial.square().mean() + net(points["boundary"]).square().mean()
        losses.append([float(pde.detach()), float(conditions.detach())])
        adam.zero_grad()
        ((pde + conditions) / 2).backward()
        adam.step()
        schedule.step()
    recorded = [record["losses"] for record in records if record["event"] == "step"]
    np.testing.assert_allclose(recorded, losses, rtol=1e-3)
    for one, other in zip(training.trainable.network.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_the_score_is_the_relative_error_on_the_test_grid():
    one = trainable("helmholtz", "problem.state=last")
    axis = np.linspace(-1, 1, 100)
    x, y = np.meshgrid(axis, axis)
    expected = np.sin(np.pi * x) * np.sin(4 * np.pi * y)
    with torch.no_grad():
        points = torch.tensor(np.stack([x.ravel(), y.ravel()], axis=1), dtype=torch.float32)
        actual = one.network(points)[0].double().numpy().reshape(100, 100)
    result = one.test([])
    relative = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert result.scores == [pytest.approx(relative, rel=1e-5)]
    assert result.metric == "relative_l2"
    assert result.domains == ["u"]
    squared = trainable("helmholtz", "problem.state=last", "problem.error=mse").test([])
    assert squared.scores == [pytest.approx(np.mean((actual - expected) ** 2), rel=1e-5)]
    assert squared.metric == "mse"


def test_validation_points_are_not_test_points():
    one = trainable("klein_gordon")
    assert one.validate().scores != one.test([]).scores


@pytest.mark.parametrize(("name", "tasks"), [("helmholtz", 2), ("burgers", 3), ("klein_gordon", 3)])
def test_conditions_are_one_task_or_one_task_each(name, tasks):
    merged, separate = trainable(name), trainable(name, "problem.conditions=separate")
    assert merged.tasks == ("pde", "conditions")
    assert len(separate.tasks) == tasks
    reports = [one.step(0, make_optimizer(config(name), one), inspect=True) for one in (merged, separate)]
    assert float(reports[0].losses.sum()) == pytest.approx(float(reports[1].losses.sum()), rel=1e-5)
    assert reports[1].names == separate.tasks
    assert reports[1].cosines.shape == (tasks, tasks)


@pytest.mark.parametrize("name", EQUATIONS)
def test_default_methods_have_static_weights_for_all_tasks(name):
    for conditions in ("merged", "separate"):
        settings = config(name, f"problem.conditions={conditions}")
        dry_run(settings, make_methods(settings))
    settings = config(name, "problem.rows=residuals", "problem.interior=5", "problem.boundary=4", "train.outer=sgd")
    dry_run(settings, make_methods(settings))  # Gauss-Newton: weights of two tasks do not fit residuals


def test_the_state_with_the_lowest_loss_is_that_before_the_step_of_its_loss():
    network = torch.nn.Linear(2, 1)
    lowest = LowestLoss(network, ["a", "b"])
    states = []
    for losses in ({"a": 3.0}, {"b": 1.0}, {"a": 2.0, "b": 1.5}, {"a": 2.5, "b": 1.5}, {"a": 0.4}):
        states.append(copy.deepcopy(network.state_dict()))
        lowest.update(losses, len(states) - 1)
        with torch.no_grad():
            network.weight += 1
        expected = {1: 1, 2: 2, 3: 2, 4: 4}.get(len(states) - 1, 0)  # 3 + 1, 2 + 1.5, 2.5 + 1.5, 0.4 + 1.5
        assert torch.equal(lowest.network.weight, states[expected]["weight"])
        assert lowest.step == (expected if len(states) > 1 else None)
    assert lowest.sum == pytest.approx(1.9)


def test_the_tested_state_follows_the_option(tmp_path):
    scores = {}
    for state in ("lowest_loss", "last", "lowest_error"):
        settings = config("klein_gordon", f"problem.state={state}", "train.outer_lr=0.05", "train.steps=12")
        records = []
        trainer(settings, Run("klein_gordon", "none", 0), tmp_path / state, records).train_and_test()
        result = records[-1]
        sums = [sum(record["losses"]) for record in records if record["event"] == "step"]
        assert result.get("lowest_loss_step") == (sums.index(min(sums)) if state == "lowest_loss" else None)
        validations = [record["score"] for record in records if record["event"] == "validation"]
        expected = {"lowest_loss": validations[-1], "last": validations[-1], "lowest_error": min(validations)}
        assert result["validation"] == expected[state]
        assert result["best_step"] == 12 or state == "lowest_error"
        scores[state] = result["scores"][0]
    assert scores["lowest_loss"] != scores["last"]


@pytest.mark.parametrize("outer", ["adam", "soap"])
def test_beta1_is_that_of_the_outer_optimizer(outer):
    one, second = trainable("burgers"), {"adam": 0.999, "soap": 0.95}[outer]
    settings = config("burgers", "train.beta1=0", f"train.outer={outer}")
    assert make_optimizer(settings, one).param_groups[0]["betas"] == (0.0, second)


@pytest.mark.slow
def test_soap_continues_from_a_checkpoint_bit_for_bit(tmp_path):
    settings = config("klein_gordon", "train.outer=soap", "train.outer_lr=0.01", "train.steps=30")
    run = Run("klein_gordon", "static(weights=[1, 10])", 0)
    whole = trainer(settings, run, tmp_path / "whole", [])
    before = {name: value.clone() for name, value in whole.trainable.network.state_dict().items()}
    assert whole.train_and_test()
    assert not trainer(settings, run, tmp_path / "parts", []).train_and_test(iter([False] * 17 + [True]).__next__)
    continued = trainer(settings, run, tmp_path / "parts", [])
    assert continued.done == 17
    continued.train_and_test()
    for name, value in whole.trainable.network.state_dict().items():
        assert torch.equal(value, continued.trainable.network.state_dict()[name])
        assert not torch.equal(value, before[name])


def test_without_its_package_soap_raises_in_the_dry_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    settings = load(None, ["problem.name=helmholtz", *TINY, "train.outer=soap"])
    with pytest.raises(ConfigError, match=r"`train.outer` 'soap' needs .* pip install 'gradhomog\[soap\]'"):
        dry_run(settings, make_methods(settings))


def by_adaptive_integration(x, t):
    """Both integrals of the Cole-Hopf transformation by adaptive quadrature, on their scale."""

    def exponent(shift):
        return -np.cos(np.pi * (x - shift)) / (2 * np.pi * VISCOSITY) - shift**2 / (4 * VISCOSITY * t)

    shifts = np.linspace(-3, 3, 60_001)
    largest = exponent(shifts).max()
    peak = shifts[exponent(shifts).argmax()]
    options = {"limit": 1000, "epsabs": 1e-13, "epsrel": 1e-12, "points": sorted([peak, peak - 0.05, peak + 0.05])}
    above = quad(lambda s: np.sin(np.pi * (x - s)) * np.exp(exponent(s) - largest), -3, 3, **options)[0]
    below = quad(lambda s: np.exp(exponent(s) - largest), -3, 3, **options)[0]
    return -above / below


@pytest.mark.parametrize(
    ("x", "t"), [(0.3, 0.2), (0.001, 1.0), (-0.7, 0.6), (0.99, 0.01), (0.5, 0.5), (-0.02, 0.4), (0.999, 1.0)]
)
def test_values_are_those_of_adaptive_integration(x, t):
    actual = burgers_solution(np.array([x]), np.array([t]), VISCOSITY)[0]
    assert actual == pytest.approx(by_adaptive_integration(x, t), rel=1e-9, abs=1e-10)


def test_the_largest_slope_is_that_of_the_literature():
    """|u_x| at x = 0 is largest at πt = 1.6037, with 152.00516 (Basdevant et al. 1986, Table 1)."""
    time, step = 1.6037 / np.pi, 1e-5
    values = burgers_solution(np.array([-2, -1, 1, 2]) * step, np.full(4, time), VISCOSITY)
    slope = values @ np.array([1, -8, 8, -1]) / (12 * step)
    assert abs(slope) == pytest.approx(152.00516, rel=1e-5)


@pytest.mark.parametrize("name", EQUATIONS)
@pytest.mark.parametrize("conditions", ["merged", "separate"])
def test_rows_of_residuals_add_up_to_half_the_gradient_of_the_losses_of_the_tasks(name, conditions):
    points = {"interior": 9, "boundary": 4} | ({"initial": 5} if name in ("burgers", "klein_gordon") else {})
    equation = EQUATIONS[name](problem_run(), **points, conditions=conditions, weight=3.0, dtype="float64")
    drawn_points = equation.points(0)
    losses, rows = gradhomog.residual_rows(equation.terms(drawn_points), equation.network)
    half = sum(equation.losses(0).values()) / 2
    torch.testing.assert_close(losses.sum(), half.detach())
    expected = torch.autograd.grad(half, list(equation.network.parameters()))
    for found, gradient in zip(rows.materialize().values(), expected, strict=True):
        torch.testing.assert_close(found.sum(0), gradient)


def test_training_on_residuals_undoes_each_step_that_does_not_decrease_the_losses():
    text = 'gauss_newton(damping=1e-9, adaptive=true, scale="paper")'  # too small at first
    equation = KleinGordon(
        problem_run(homogenizers=text), interior=16, initial=8, boundary=4, rows="residuals", dtype="float64"
    )
    optimizer = torch.optim.SGD(equation.parameters(), lr=1.0)
    for index in range(4):
        losses = torch.stack([*equation.losses(index).values()])
        rows = [torch.autograd.grad(loss, equation.parameters(), retain_graph=True) for loss in losses]
        jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
        report = equation.step(index, optimizer, inspect=True)
        assert sum(equation.losses(index).values()) < losses.sum()
        torch.testing.assert_close(report.losses, losses.detach())
        torch.testing.assert_close(report.gramian, jacobian @ jacobian.T)
    assert equation.homogenizers.steps > 4  # attempts
