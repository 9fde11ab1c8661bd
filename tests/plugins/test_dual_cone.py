"""UPGrad and DualProj against least squares on the rows."""

import pytest
import torch
from hypothesis import given

import gradhomog
from gradhomog.testing import jacobians
from tests.plugins.rows import nearest_without_conflict

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


def test_no_conflict_remains_where_norms_differ_by_a_large_factor():
    # Seen in TorchJD 0.18: with its ridge the least cosine is below -1e-5, and the direction more than 1 % off.
    rows = torch.randn(8, 20, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    rows = rows * torch.logspace(-2, 2, 8, dtype=torch.float64)[:, None]
    direction = gradhomog.pipeline("upgrad").combine(rows)
    assert float((rows @ direction / rows.norm(dim=1)).min() / direction.norm()) > -1e-12


@pytest.mark.parametrize(("method", "expected"), [("upgrad", [7.5e-4, 1.25e-3]), ("dualproj", [7.5e-4, 7.5e-4])])
def test_small_gradients_are_projected_like_large_ones(method, expected):
    # Seen in TorchJD 0.18: it treats a Gramian of trace below 1e-4 as zero and returns the mean, which conflicts here.
    rows = 1e-3 * torch.tensor([[3.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    assert gradhomog.pipeline(method).combine(rows).tolist() == pytest.approx(expected)
