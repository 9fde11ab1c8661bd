"""iMAML: rows against closed forms and finite differences; conjugate gradients against minima over Krylov spaces."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradhomog import TaskBatch
from gradhomog_adapters.imaml import IMAML
from gradhomog_adapters.imaml import conjugate_gradients as solve
from gradhomog_adapters.reptile import Reptile
from tests.adapters import checks
from tests.adapters.checks import INNER_OF_PYTORCH, networks, tasks

# Enough inner and CG steps for the row to equal the derivative of the loss up to rounding, on these networks.
SOLVED = {"proximal": 5.0, "inner_lr": 0.15, "inner_steps": 150, "cg_steps": 40}


class Point(nn.Module):
    """½ w·M w for the input M: all derivatives have closed forms."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, generator=torch.Generator().manual_seed(3), dtype=torch.float64))

    def forward(self, x):
        return (self.w @ x @ self.w / 2)[None, None]


def random_positive_definite(size, seed):
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T / size


def quadratic_task(support, query):
    y = torch.zeros(1, 1, 1)
    return TaskBatch(support[None], y, query[None], y)


def make_point_learner(point, **options):
    return IMAML(point, nn.Identity(), loss=lambda out, y: out.sum(), **options)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_on_a_quadratic_the_row_is_the_closed_form(damping, engine):
    # θ* = (I + A/λ)⁻¹ θ, row = ((1 + δ)I + A/λ)⁻¹ B θ*
    a, b, strength = random_positive_definite(4, 0), random_positive_definite(4, 1), 0.7
    point, eye = Point(), torch.eye(4, dtype=torch.float64)
    learner = make_point_learner(
        point, proximal=strength, inner_lr=0.3, inner_steps=300, cg_steps=6, damping=damping, adapt="encoder.w",
        engine=engine,
    )  # fmt: skip
    row = learner.rows(quadratic_task(a, b)).jacobian["encoder.w"][0]
    solution = torch.linalg.solve(eye + a / strength, point.w.detach())
    expected = torch.linalg.solve((1 + damping) * eye + a / strength, b @ solution)
    torch.testing.assert_close(row, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "support"])
@pytest.mark.parametrize("adapt", ["*", "head.*", "encoder.*"])
def test_rows_are_derivatives_of_the_loss_at_the_solved_problem(adapt, norm):
    held = {"proximal": 40.0, "inner_lr": 0.02, "inner_steps": 60} if adapt != "head.*" else {}
    learner = IMAML(*networks(norm=True), adapt=adapt, norm=norm, **{**SOLVED, **held})
    checks.assert_rows_match_finite_differences(learner, tasks())


@pytest.mark.parametrize("adapt", ["*", "head.*"])
@pytest.mark.parametrize("inner", INNER_OF_PYTORCH)
def test_every_inner_step_descends_on_the_proximal_objective(inner, adapt):
    ours, theirs = INNER_OF_PYTORCH[inner]
    encoder, head = networks(norm=inner != "adam")
    task = tasks()[0]
    learner = IMAML(encoder, head, inner=ours, inner_steps=2, test_steps=4, proximal=3.0, adapt=adapt)
    found = learner.predict(task.support_x, task.support_y, task.query_x)
    encoder, head = copy.deepcopy((encoder, head))
    parameters = [*head.parameters()] if adapt == "head.*" else [*encoder.parameters(), *head.parameters()]
    starts, optimizer = [p.detach().clone() for p in parameters], theirs(parameters)
    for _ in range(4):
        optimizer.zero_grad()
        distance = sum((p - start).square().sum() for p, start in zip(parameters, starts, strict=True))
        (nn.functional.cross_entropy(head(encoder(task.support_x)), task.support_y) + 1.5 * distance).backward()
        optimizer.step()
    torch.testing.assert_close(found, head(encoder(task.query_x)).detach(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("max_norm_ratio", [1.0, 2.0])
def test_rows_of_indefinite_systems_are_bounded_and_first_order_without_positive_curvature(max_norm_ratio):
    generator, query = torch.Generator().manual_seed(0), torch.eye(4, dtype=torch.float64)
    point = Point()
    w = point.w.detach()
    options = {"proximal": 1.0, "inner_steps": 0, "adapt": "encoder.w", "max_norm_ratio": max_norm_ratio}
    for _ in range(10):
        support = torch.randn(4, 4, generator=generator, dtype=torch.float64)
        row = (
            make_point_learner(point, **options)
            .rows(quadratic_task(3 * (support + support.T), query))
            .jacobian["encoder.w"][0]
        )
        assert float(row.norm()) <= max_norm_ratio * float(w.norm()) * (1 + 1e-12)
        assert float(row @ w) > 0
    row = make_point_learner(point, **options).rows(quadratic_task(-5 * query, query)).jacobian["encoder.w"][0]
    assert torch.equal(row, w)


@pytest.mark.parametrize("make", [IMAML, Reptile])
def test_graphs_of_inner_steps_are_freed(make):
    for steps in (3, 12):
        encoder, head = networks()
        encoder.append(checks.CallCounter())
        make(encoder, head, inner_steps=steps, engine="loop").rows(tasks(1))
        assert encoder[-1].calls > steps
        assert encoder[-1].most_alive <= 2


# A matrix, a vector and a 0-d parameter, as in a network: 7 numbers.
SHAPES = {"layer.weight": (2, 2), "layer.bias": (2,), "temperature": ()}
SIZE = 7

seeds = st.integers(0, 2**32 - 1)


def named(flat):
    parts = flat.split([math.prod(shape) for shape in SHAPES.values()])
    return {name: part.reshape(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}


def flat(tensors):
    return torch.cat([tensors[name].reshape(-1) for name in SHAPES])


def matrix_operator(matrix):
    return lambda v: named(matrix @ flat(v))


def system(seed, eigenvalues=None, dtype=torch.float64):
    """Return a symmetric matrix with the given eigenvalues, by default between 1 and 10, and a right-hand side."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)).Q
    if eigenvalues is None:
        eigenvalues = 10 ** torch.rand(SIZE, generator=generator, dtype=torch.float64)
    matrix = basis @ torch.diag(torch.as_tensor(eigenvalues, dtype=torch.float64)) @ basis.T
    b = torch.randn(SIZE, generator=generator, dtype=torch.float64)
    return ((matrix + matrix.T) / 2).to(dtype), b.to(dtype)


def assert_relative_error(x, y, tolerance):
    assert (x - y).norm() <= tolerance * y.norm()


@given(seeds, st.integers(0, SIZE - 1), st.integers(1, 12))
def test_the_solution_is_the_last_iterate_of_positive_curvature(seed, negative, iterations):
    generator = torch.Generator().manual_seed(seed)
    eigenvalues = 0.2 + torch.rand(SIZE, generator=generator, dtype=torch.float64)
    eigenvalues[:negative] *= -0.5
    matrix, b = system(seed, eigenvalues)
    solution = solve(matrix_operator(matrix), named(b), iterations=iterations)
    answer = flat(solution)
    # Oracle: minimum over the Krylov space of each dimension, while the matrix is positive definite on it.
    krylov, expected, dimension = b[:, None], b, 0
    while dimension < min(iterations, SIZE):
        basis = torch.linalg.qr(krylov).Q
        small = basis.T @ matrix @ basis
        if torch.linalg.eigvalsh(small)[0] <= 0:
            break
        expected, dimension = basis @ torch.linalg.solve(small, basis.T @ b), dimension + 1
        krylov = torch.cat([basis, matrix @ basis[:, -1:]], 1)
    assert_relative_error(answer, expected, 1e-6)
    assert b @ answer > 0


def test_a_curvature_below_rounding_counts_as_none_however_large_the_vectors():
    for factor in (1e-30, 1.0, 1e20):
        matrix = factor * torch.tensor([[1e-9, 1.0], [1.0, 0.0]])  # pᵀA p is 1e-9 of ‖p‖ ‖A p‖
        b = {"x": torch.tensor([factor, 0.0])}
        solution = solve(lambda v, matrix=matrix: {"x": matrix @ v["x"]}, b, iterations=3)
        assert torch.equal(solution["x"], b["x"])


@given(seeds)
def test_batched_systems_stop_independently(seed):
    kinds = [None, (-1,) * 7, (-0.5, 2, 1, 1, 3, 2, 1.5), (2,) * 7]
    pairs = [system(seed + i, kind) for i, kind in enumerate(kinds)]
    matrices = torch.stack([matrix for matrix, _ in pairs])
    vectors = torch.stack([*(b for _, b in pairs[:3]), 0 * pairs[3][1]])

    found = torch.func.vmap(lambda matrix, b: solve(matrix_operator(matrix), named(b), iterations=5))(matrices, vectors)
    for i in range(len(kinds)):
        alone = solve(matrix_operator(matrices[i]), named(vectors[i]), iterations=5)
        for name, expected in alone.items():
            torch.testing.assert_close(found[name][i], expected, rtol=1e-9, atol=1e-12)
