"""What all solvers have in common: batches, dtypes, scale, order, and what they refuse."""

import pytest
import torch

from gradhomog import (
    OptionError,
    bargaining_weights,
    conflict_averse_weights,
    dual_cone_weights,
    minimum_norm_weights,
)
from tests.solvers.gramians import rows

SOLVERS = {
    "minimum_norm": minimum_norm_weights,
    "dual_cone": lambda gramian: dual_cone_weights(gramian, torch.full_like(gramian[..., 0], 0.25)),
    "conflict_averse": lambda gramian: conflict_averse_weights(gramian, 0.4),
    "bargaining": bargaining_weights,
    "fair": lambda gramian: bargaining_weights(gramian, 2.0),
}
each = pytest.mark.parametrize("name", SOLVERS)


def gramians(tasks, count):
    found = [rows(seed, tasks=tasks) for seed in range(count)]
    return torch.stack([jacobian @ jacobian.T for jacobian in found])


@each
@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_a_batch_is_solved_as_each_by_itself(name, tasks):
    # Some of these take other ways than most: zero rows, opposite ones, no solution.
    batch = gramians(tasks, 24)
    expected = torch.stack([SOLVERS[name](gramian) for gramian in batch])
    found = SOLVERS[name](batch.reshape(2, 3, 4, tasks, tasks)).reshape(24, tasks)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12 * float(expected.abs().max()))


def test_a_batch_of_gramians_takes_several_vectors_each():
    batch = gramians(5, 4)
    vectors = torch.rand(4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.stack([dual_cone_weights(g, u) for g, u in zip(batch, vectors, strict=True)])
    torch.testing.assert_close(dual_cone_weights(batch, vectors), expected)


@each
@pytest.mark.parametrize("exponent", [-59, -7, 12, 59])
def test_a_common_factor_that_is_a_power_of_two_changes_no_bit(name, exponent):
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
def test_the_order_of_the_tasks_changes_nothing(name):
    order = torch.tensor([3, 0, 4, 1, 2])
    for seed in range(6):
        jacobian = torch.randn(5, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        gramian = jacobian @ jacobian.T
        found, plain = SOLVERS[name](gramian[order][:, order]), SOLVERS[name](gramian)
        torch.testing.assert_close(found, plain[order], rtol=1e-8, atol=1e-12)


@each
def test_gramians_of_any_dtype_are_solved_in_float64(name):
    jacobian = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    gramian = jacobian @ jacobian.T
    found = SOLVERS[name](gramian)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, SOLVERS[name](gramian.double()))


@each
def test_gramians_of_float32_rows_that_depend_on_each_other_have_finite_weights(name):
    # Rounded products of dependent rows are neither symmetric nor positive semi-definite.
    for seed in range(30):
        jacobian = rows(seed, tasks=8).float()
        assert bool(SOLVERS[name](jacobian @ jacobian.T).isfinite().all()), seed


@each
def test_no_graph_is_kept_of_what_needs_none(name):
    assert not SOLVERS[name](gramians(4, 1)[0]).requires_grad


@each
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 2)])
def test_what_is_not_square_is_refused(name, shape):
    with pytest.raises(OptionError, match=r"`gramian` must have shape \[..., tasks, tasks\]"):
        SOLVERS[name](torch.zeros(shape))
