"""Aligned-MTL against TorchJD where that is exact, singular values of the rows, and finite differences."""

import pytest
import torch

import gradhomog
from gradhomog_plugins.aligned_mtl import balancing_matrix
from tests.plugins.rows import normal

MODES = ["min", "median", "rmse"]


def equalised(rows, rank, mode):
    """The rows with all their singular values made equal: from their singular value decomposition."""
    left, values, right = torch.linalg.svd(rows, full_matrices=False)
    squares = values[:rank].square()
    scale = {"min": squares.min(), "median": squares.median(), "rmse": squares.mean()}[mode].sqrt()
    return scale * left[:, :rank] @ right[:rank]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_dependent_rows_have_their_singular_values_equalised_but_for_those_that_are_zero(dtype, mode):
    one, other = normal(2, 50)
    rows = torch.stack([one, 0.3 * one, other, -2 * other, one + other])
    expected = equalised(rows, 2, mode).mean(0)
    found = gradhomog.pipeline(f"aligned_mtl(scale_mode='{mode}')").combine(rows.to(dtype))
    torch.testing.assert_close(found, expected.to(dtype), rtol=1e-5, atol=1e-5)


def test_rounding_of_parallel_rows_does_not_shrink_the_step():
    one, other = normal(2, 100_000).float()
    rows = torch.stack([one, 0.3 * one, other])  # products are rounded, so that in float64 these are independent
    expected = equalised(rows.double(), 2, "min").mean(0)
    torch.testing.assert_close(gradhomog.pipeline("aligned_mtl").combine(rows.double()), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_equal_rows_are_dependent_at_every_scale_and_beside_zero_rows(mode):
    # With a tolerance of N · eps alone, 0.6 of a row became 0.375 of it at one scale of five.
    pipe = gradhomog.pipeline(f"aligned_mtl(scale_mode='{mode}')")
    row, other = normal(2, 6)
    for scale in torch.logspace(-18, 18, 23, dtype=torch.float64).tolist():
        equal = torch.stack([row, 0 * row, 0 * row, row, row])
        torch.testing.assert_close(pipe.combine(scale * equal) / scale, 0.6 * row)
        two = torch.stack([row, 0 * row, 0 * row, other, row])
        torch.testing.assert_close(pipe.combine(scale * two) / scale, equalised(two, 2, mode).mean(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("longer", [1e4, 1e8, 1e12])
def test_a_short_row_is_no_rounding(longer, dtype):
    rows = torch.tensor([[longer, 0.0], [0.0, 1.0]], dtype=dtype)
    found = gradhomog.pipeline("aligned_mtl(scale='paper')").combine(rows)
    torch.testing.assert_close(found, torch.ones(2, dtype=dtype))


def test_rows_of_very_different_lengths_become_orthogonal_in_directions_that_are_not_those_of_axes():
    rows = torch.tensor([[3e8, 4e8, 0.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    changed = balancing_matrix(rows @ rows.T) @ rows
    inner = changed @ changed.T
    torch.testing.assert_close(inner, float(inner[0, 0]) * torch.eye(2, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(changed, equalised(rows, 2, "min"), rtol=0, atol=1e-6)


def directions(mode):
    return lambda rows: balancing_matrix(rows @ rows.T, mode) @ rows


@pytest.mark.parametrize(("squares", "mode"), [([4, 4, 4], "rmse"), ([1, 4, 4], "min"), ([4, 4, 1], "rmse")])
def test_equal_eigenvalues_have_both_derivatives(squares, mode):
    # The derivatives of eigenvectors are infinite there; seen in TorchJD 0.18, whose first derivative is not finite.
    rows = torch.diag(torch.tensor(squares, dtype=torch.float64).sqrt())
    assert torch.autograd.gradcheck(directions(mode), rows.clone().requires_grad_())
    assert torch.autograd.gradgradcheck(directions(mode), rows.clone().requires_grad_())


@pytest.mark.parametrize("mode", MODES)
def test_a_repeated_least_eigenvalue_counts_as_the_mean_of_its_copies(mode):
    rows = 2 * torch.eye(3, 4, dtype=torch.float64)
    slope = torch.autograd.functional.jacobian(directions(mode), rows)
    assert torch.allclose(slope, torch.autograd.functional.jacobian(directions("rmse"), rows), atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_dependent_rows_have_both_derivatives_along_what_keeps_their_rank(mode):
    combination = normal(4, 2, seed=1)

    def direction(basis):
        return directions(mode)(combination @ basis)

    assert torch.autograd.gradcheck(direction, normal(2, 3).requires_grad_())
    assert torch.autograd.gradgradcheck(direction, normal(2, 3).requires_grad_())
