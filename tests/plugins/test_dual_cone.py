"""UPGrad, DualProj and DCGD: against least squares on the rows, and the published algorithms."""

import pytest
import torch
from hypothesis import assume, given

import gradhomog
from gradhomog.testing import jacobians
from tests.plugins.rows import both_dtypes, nearest_without_conflict, normal

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def upgrad(rows):
    return torch.stack([nearest_without_conflict(rows, row) for row in rows]).mean(0)


def dualproj(rows):
    return nearest_without_conflict(rows, rows.mean(0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("projected", [upgrad, dualproj])
def test_rows_with_an_opposite_pair_are_projected_in_every_precision(projected, dtype):
    # The first seed had weights of 2e6, cosines .243 .528 .484 −.243: the Gramian's rounding passed for a direction.
    for seed in range(1, 41):
        rows = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed)).to(dtype)
        rows[3] = -rows[0]
        exact = rows.double()
        found = gradhomog.pipeline(projected.__name__).combine(rows).double()
        size = float(exact.norm(dim=1).mean())
        assert float((found - projected(exact)).norm()) < size * max(1e-5, torch.finfo(dtype).eps), seed
        assert float((exact @ found / exact.norm(dim=1)).min()) > -size * max(1e-5, torch.finfo(dtype).eps), seed


@pytest.mark.parametrize("projected", [upgrad, dualproj])
@given(rows=jacobians(tasks=(1, 6), spread=3))
def test_the_direction_is_that_of_nonnegative_least_squares(projected, rows):
    found = gradhomog.pipeline(projected.__name__).combine(rows)
    torch.testing.assert_close(found, projected(rows), rtol=1e-6, atol=1e-8 * float(rows.norm(dim=1).max()))


VARIANTS = ["center", "projection", "average"]


def combine(rows, variant, scale="mean", **options):
    return gradhomog.pipeline([("dcgd", {"variant": variant, "scale": scale})]).combine(rows, **options)


def without(vector, row):
    """The component of a vector that is orthogonal to a row."""
    return vector - (vector @ row) / (row @ row) * row


def published(rows, variant):
    """The three algorithms of the paper for the residual's and the boundary's gradient."""
    residual, boundary = rows
    total = residual + boundary
    if variant == "center":
        center = residual / residual.norm() + boundary / boundary.norm()
        return (center @ total) / (center @ center) * center
    outside = total @ residual < 0 or total @ boundary < 0
    if not outside:
        return total
    if variant == "average":
        return (without(total, residual) + without(total, boundary)) / 2
    return without(total, residual if total @ residual < 0 else boundary)


@both_dtypes
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("factor", [0.1, 1.0, 30.0])
def test_two_rows_give_the_published_vector(variant, factor, dtype):
    outside = 0
    for seed in range(8):
        rows = normal(2, 5, seed=seed)
        rows[1] = factor * (rows[1] - 3 * (seed % 2) * rows[0])  # every second pair conflicts
        outside += bool((rows @ rows.sum(0) < 0).any())
        expected = published(rows, variant)
        found = combine(rows.to(dtype), variant, "paper").double()
        tolerance = 1e-9 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(rows.norm()))
    assert outside >= 4


@given(jacobians(spread=2, zero=False))
def test_the_average_is_the_mean_of_the_projected_rows_where_the_sum_conflicts(rows):
    inner, size = rows @ rows.sum(0), rows.norm(dim=1) * rows.norm(dim=1).sum()
    assume(bool((inner < -1e-9 * size).any()))
    expected = torch.stack([nearest_without_conflict(rows, row) for row in rows]).mean(0)
    found = combine(rows, "average", "paper")
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8 * float(rows.norm(dim=1).max()))


@pytest.mark.parametrize("variant", ["projection", "average"])
def test_a_sum_that_conflicts_with_no_row_is_unchanged_although_rows_conflict(variant):
    rows = torch.tensor([[3.0, 0.0, 1.0], [-1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
    assert float(rows[0] @ rows[1]) < 0
    torch.testing.assert_close(combine(rows, variant), rows.mean(0))


@given(jacobians(tasks=(1, 5)))
def test_the_variants_are_config_and_dualproj_for_any_number_of_rows(rows):
    size = 1e-9 * float(rows.abs().max())
    for variant, name in [("center", "config"), ("projection", "dualproj")]:
        expected = gradhomog.pipeline(name).combine(rows)
        torch.testing.assert_close(combine(rows, variant), expected, rtol=1e-7, atol=size)


@pytest.mark.parametrize("angle", torch.linspace(0, 3, 7).tolist())
def test_a_sum_on_the_boundary_of_the_cone_is_unchanged_by_the_average_in_spite_of_rounding(angle):
    # The sum is orthogonal to the first row; a rotation makes the inner product ±1e-17. Outside, d would be shorter.
    turn = torch.tensor([[torch.cos(torch.tensor(angle)), -torch.sin(torch.tensor(angle))], [0.0, 0.0]])
    turn[1] = torch.stack([-turn[0, 1], turn[0, 0]])
    rows = torch.tensor([[1.0, 0.0], [-1.0, 1.0]]) @ turn
    torch.testing.assert_close(combine(rows, "average"), rows.mean(0))
