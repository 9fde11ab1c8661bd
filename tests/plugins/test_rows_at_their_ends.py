"""Rows at the ends of their dtype: dependent up to rounding, and of the longest and shortest norms."""

import pytest
import scipy.optimize
import torch

import gradhomog

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def random_rows(tasks, params, seed):
    return torch.randn(tasks, params, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def nearest_without_conflict(rows, row):
    """Return the projection on {d : Jd ≥ 0} by SciPy's non-negative least squares on the rows."""
    rows, row = rows.numpy(), row.numpy()
    return torch.from_numpy(row + scipy.optimize.nnls(rows.T, -row)[0] @ rows)


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "method",
    [
        "upgrad", "dualproj", "dcgd", "dcgd(variant='average')", "cagrad", "cagrad(c=0.9)", "mgda", "sdmgrad",
        "nash_mtl", "fairgrad", "config", "imtl_g", "aligned_mtl", "aligned_mtl(scale_mode='median')", "pcd(tau=0)",
        "krum", "pcgrad",
    ],
)  # fmt: skip
def test_dependent_rows_have_the_direction_of_float64_rows_in_every_precision(method, dtype):
    # Rows of bfloat16 that are dependent up to rounding counted as independent: directions of another kind.
    tolerance = {torch.float32: 1e-4, torch.float16: 1.5e-2, torch.bfloat16: 2e-2}[dtype]
    for seed in range(24):
        rows = random_rows(3, 40, seed)
        rows[2] = (0.3 if seed % 2 else -0.3) * rows[0] + (seed % 3) * rows[1]
        expected = gradhomog.pipeline(method).combine(rows)
        found = gradhomog.pipeline(method).combine(rows.to(dtype)).double()
        assert float((found - expected).norm()) < tolerance * float(rows.norm(dim=1).mean()), seed


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("method", ["upgrad", "dualproj", "mgda", "cagrad", "cagrad(c=0.9)", "sdmgrad"])
def test_solvers_converge_if_rows_add_up_to_zero(method, dtype):
    # ConvergenceWarnings are errors here. Half of CAGrad's steps issued one, because a ball around zero has no radius.
    for seed in range(40):
        rows = random_rows(3 + seed % 6, (5, 100, 1000)[seed % 3], seed)
        rows[-1] = -rows[:-1].sum(0)
        direction = gradhomog.pipeline(method).combine(rows.to(dtype))
        assert float(direction.norm()) < 2 * torch.finfo(dtype).eps ** 0.5 * float(rows.norm(dim=1).mean())
