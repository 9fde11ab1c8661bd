"""Conjugate gradients against direct solutions and SciPy's iterates; early stops; no device synchronization."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator, cg
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from gradhomog_adapters._conjugate_gradients import solve

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


@given(seeds, st.integers(1, SIZE))
def test_each_iterate_is_that_of_scipy(seed, iterations):
    matrix, b = system(seed)
    calls = []
    operator = LinearOperator((SIZE, SIZE), matvec=lambda v: calls.append(None) or matrix.numpy() @ v, dtype=float)
    expected, _ = cg(operator, b.numpy(), rtol=0, atol=0, maxiter=iterations)
    solution = solve(matrix_operator(matrix), named(b), iterations=iterations)
    assert_relative_error(flat(solution), torch.as_tensor(expected), 1e-9)
    assert iterations == len(calls)


@given(seeds, st.integers(1, SIZE))
def test_iterations_beyond_the_number_of_eigenvalues_change_nothing(seed, distinct):
    eigenvalues = torch.linspace(1, 3, distinct, dtype=torch.float64).repeat(SIZE)[:SIZE]
    matrix, b = system(seed, eigenvalues)
    solution = solve(matrix_operator(matrix), named(b), iterations=50)
    assert_relative_error(flat(solution), torch.linalg.solve(matrix, b), 1e-13)


@given(seeds, st.integers(1, SIZE - 1), st.integers(1, 12))
def test_the_solution_of_an_indefinite_system_is_the_last_iterate_of_positive_curvature(seed, negative, iterations):
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


@given(seeds, st.floats(1, 4), st.integers(1, 12))
def test_the_solution_is_the_last_iterate_not_longer_than_longest(seed, max_norm_ratio, iterations):
    matrix, b = system(seed, (0.05, 0.2, 1, 2, 1.5, 3, 0.8))
    lengths = [
        flat(solve(matrix_operator(matrix), named(b), iterations=k)).norm() / b.norm() for k in range(1, SIZE + 1)
    ]
    allowed = sum(bool(length <= max_norm_ratio) for length in lengths[:iterations])
    solution = solve(matrix_operator(matrix), named(b), iterations=iterations, max_norm_ratio=max_norm_ratio)
    expected = flat(solve(matrix_operator(matrix), named(b), iterations=allowed)) if allowed else b
    assert_relative_error(flat(solution), expected, 1e-6)


def test_a_curvature_below_rounding_counts_as_none_however_large_the_vectors():
    for factor in (1e-30, 1.0, 1e20):
        matrix = factor * torch.tensor([[1e-9, 1.0], [1.0, 0.0]])  # pᵀA p is 1e-9 of ‖p‖ ‖A p‖
        b = {"x": torch.tensor([factor, 0.0])}
        solution = solve(lambda v, matrix=matrix: {"x": matrix @ v["x"]}, b, iterations=3)
        assert torch.equal(solution["x"], b["x"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_gives_zero(dtype):
    matrix, b = system(0, dtype=dtype)
    solution = solve(matrix_operator(matrix), named(0 * b), iterations=4)
    assert torch.equal(flat(solution), torch.zeros(SIZE, dtype=dtype))


@given(seeds, st.floats(-18, 18), st.sampled_from([None, (-0.5, 2, 1, 1, 3, 2, 1.5)]))
def test_a_factor_of_b_is_a_factor_of_the_solution(seed, exponent, eigenvalues):
    matrix, b = system(seed, eigenvalues, torch.float32)
    factor = 10**exponent
    one = solve(matrix_operator(matrix), named(b), iterations=4)
    other = solve(matrix_operator(matrix), named((b.double() * factor).float()), iterations=4)
    assert_relative_error(flat(other).double() / factor, flat(one).double(), 2e-4)


@pytest.mark.parametrize("factor", [1e-30, 1e-18, 1e18, 1e30])
def test_a_factor_of_the_operator_divides_the_solution(factor):
    matrix, b = system(3, dtype=torch.float32)
    expected = torch.linalg.solve(matrix.double(), b.double())
    solution = solve(matrix_operator(matrix * factor), named(b), iterations=4 * SIZE)  # float32 needs more than SIZE
    assert_relative_error(flat(solution).double() * factor, expected, 1e-4)


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


@pytest.mark.parametrize("where", ["b", "operator"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("iterations", [1, 3])
def test_nonfinite_inputs_make_the_solution_nan(where, value, iterations):
    matrix, b = system(0)
    (matrix[2] if where == "operator" else b)[2] = value
    assert flat(solve(matrix_operator(matrix), named(b), iterations=iterations)).isnan().all()


def test_solve_does_not_synchronize_with_the_device():
    """Fake tensors have no values: the `.item()` call confirms that reading one raises."""
    with FakeTensorMode():
        matrix, b = torch.empty(SIZE, SIZE), torch.empty(SIZE)
        solution = solve(matrix_operator(matrix), named(b), iterations=3, max_norm_ratio=2)
        assert solution["layer.weight"].shape == (2, 2)
        with pytest.raises(DataDependentOutputException):
            solution["temperature"].item()
    meta = solve(
        matrix_operator(torch.empty(SIZE, SIZE, device="meta")), named(torch.empty(SIZE, device="meta")), iterations=3
    )
    assert all(t.is_meta for t in meta.values())
