"""Properties of all solvers: batches, dtypes, scale, dependent float32 rows, validation."""

import pytest
import torch

from gradhomog import OptionError, bargaining_weights, conflict_averse_weights, dual_cone_weights, minimum_norm_weights
from tests.solvers.gramians import rows

SOLVERS = {
    "minimum_norm": lambda gramian: minimum_norm_weights(gramian).weights,
    "dual_cone": lambda gramian: dual_cone_weights(gramian, torch.full_like(gramian[..., 0], 0.25)).weights,
    "conflict_averse": lambda gramian: conflict_averse_weights(gramian, 0.4).weights,
    "bargaining": lambda gramian: bargaining_weights(gramian).weights,
    "fair": lambda gramian: bargaining_weights(gramian, 2.0).weights,
}
each = pytest.mark.parametrize("name", SOLVERS)


def gramians(tasks, count):
    found = [rows(seed, tasks=tasks) for seed in range(count)]
    return torch.stack([jacobian @ jacobian.T for jacobian in found])


@each
@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_a_batch_has_the_solutions_of_its_gramians(name, tasks):
    # The batch contains zero rows, opposite rows and Gramians without a solution.
    batch = gramians(tasks, 24)
    expected = torch.stack([SOLVERS[name](gramian) for gramian in batch])
    found = SOLVERS[name](batch.reshape(2, 3, 4, tasks, tasks)).reshape(24, tasks)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12 * float(expected.abs().max()))


def test_a_batch_of_gramians_with_several_vectors_each():
    batch = gramians(5, 4)
    vectors = torch.rand(4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.stack([dual_cone_weights(g, u).weights for g, u in zip(batch, vectors, strict=True)])
    torch.testing.assert_close(dual_cone_weights(batch, vectors).weights, expected)


@each
@pytest.mark.parametrize("exponent", [-59, -7, 12, 59])
def test_a_common_factor_that_is_a_power_of_two_gives_identical_bits(name, exponent):
    for seed in range(6):
        gramian = rows(seed, tasks=6) @ rows(seed, tasks=6).T
        plain, found = (SOLVERS[name](g) for g in (gramian, gramian * 4.0**exponent))
        if name == "bargaining":
            found = found * 2.0**exponent
        if name == "fair":  # of degree −4/3: powers round
            torch.testing.assert_close(found * 2.0 ** (exponent * 4 / 3), plain, rtol=1e-9, atol=0)
        else:
            assert torch.equal(found, plain)


@each
def test_gramians_of_any_dtype_are_solved_in_float64(name):
    jacobian = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    gramian = jacobian @ jacobian.T
    found = SOLVERS[name](gramian)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, SOLVERS[name](gramian.double()), rtol=1e-4, atol=1e-5)  # the default rounding


DEPENDENT = [
    (jacobian.float(), rank)
    for rank in (1, 2, 4)
    for seed in range(6)
    for generator in [torch.Generator().manual_seed(seed)]
    for jacobian in [torch.randn(9, rank, generator=generator) @ torch.randn(rank, 500, generator=generator)]
]


@pytest.mark.parametrize("rounding", [None, 1e-6], ids=["float32", "float64 with rounding"])
def test_every_solver_converges_on_dependent_float32_rows(rounding):
    # Their Gramians are indefinite by rounding.
    for jacobian, rank in DEPENDENT:
        gramian = jacobian @ jacobian.T
        gramian = gramian if rounding is None else gramian.double()
        for solution in (
            minimum_norm_weights(gramian, rounding),
            dual_cone_weights(gramian, torch.eye(9), rounding),
            conflict_averse_weights(gramian, 0.9, rounding),
            bargaining_weights(gramian, 2.0, rounding),
        ):
            assert bool(solution.converged.all()), rank
            assert bool(solution.weights.isfinite().all())


def test_directions_of_dependent_float32_rows_are_nearly_as_good_as_in_float64():
    for jacobian, _ in DEPENDENT:
        exact = jacobian.double()
        size = float(exact.norm(dim=1).max())
        gramian, precise = jacobian @ jacobian.T, exact @ exact.T
        shortest = minimum_norm_weights(gramian).weights @ exact
        assert float(shortest.norm()) <= float((minimum_norm_weights(precise).weights @ exact).norm()) + 1e-3 * size
        projected = dual_cone_weights(gramian, torch.full((9,), 1 / 9)).weights @ exact
        assert float((exact @ projected).min()) >= -1e-4 * size**2
        averse = conflict_averse_weights(gramian, 1.0).weights @ exact
        optimum = conflict_averse_weights(precise, 1.0).weights @ exact
        assert float((exact @ averse).min()) >= min(float((exact @ optimum).min()), 0.0) - 1e-4 * size**2


@pytest.mark.slow_after_first
@pytest.mark.parametrize("tasks", [2, 3, 5])
@pytest.mark.parametrize("name", ["minimum_norm", "conflict_averse", "bargaining", "fair", "convex"])
def test_differentiable_twice_where_the_support_is_constant(name, tasks):
    jacobian = torch.randn(tasks, 9, generator=torch.Generator().manual_seed(tasks), dtype=torch.float64)
    solver = {**SOLVERS, "convex": lambda gramian: bargaining_weights(gramian, 0.5).weights}[name]

    def direction(rows):
        return solver(rows @ rows.T) @ rows

    jacobian.requires_grad_()
    assert torch.autograd.gradcheck(direction, jacobian)
    assert torch.autograd.gradgradcheck(direction, jacobian)


def test_converged_has_the_batch_shape():
    batch = gramians(4, 6).reshape(2, 3, 4, 4)
    assert minimum_norm_weights(batch).converged.shape == (2, 3)
    assert dual_cone_weights(batch, torch.ones(2, 3, 5, 4)).converged.shape == (2, 3, 5)
    assert conflict_averse_weights(batch, 0.4).converged.shape == (2, 3)
    assert bargaining_weights(batch).converged.shape == (2, 3)


@each
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 2)])
def test_a_gramian_that_is_not_square_raises(name, shape):
    with pytest.raises(OptionError, match=r"`gramian` must have shape \[..., tasks, tasks\]"):
        SOLVERS[name](torch.zeros(shape))
