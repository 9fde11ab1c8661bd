"""UPGrad against least squares on the rows, PCGrad for two tasks, and TorchJD where that is exact."""

import pytest
import scipy.optimize
import torch
import torchjd.aggregation
from hypothesis import given
from torchjd.linalg import QuadprogProjector

import gradhomog
from gradhomog.testing import jacobians


@given(jacobians(tasks=(1, 6), spread=3))
def test_every_row_becomes_its_projection_on_the_dual_cone(rows):
    expected = [row + torch.from_numpy(scipy.optimize.nnls(rows.T.numpy(), -row.numpy())[0]) @ rows for row in rows]
    found = gradhomog.pipeline("upgrad").combine(rows)
    size = float(rows.norm(dim=1).max())
    torch.testing.assert_close(found, torch.stack(expected).mean(0), rtol=1e-6, atol=1e-8 * size)


@given(jacobians(tasks=(2, 2)))
def test_for_two_tasks_it_is_pcgrad(rows):
    expected = gradhomog.pipeline("pcgrad").combine(rows)
    found = gradhomog.pipeline("upgrad").combine(rows)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9 * float(rows.norm(dim=1).max()))


@pytest.mark.parametrize("tasks", [2, 4, 8])
def test_independent_rows_equal_torchjd_without_its_ridge(tasks):
    rows = torch.randn(tasks, 20, generator=torch.Generator().manual_seed(tasks), dtype=torch.float64)
    rows = rows - 0.9 * rows.mean(0)
    exact = torchjd.aggregation.UPGrad(projector=QuadprogProjector(norm_eps=0.0, reg_eps=1e-12))
    torch.testing.assert_close(gradhomog.pipeline("upgrad").combine(rows), exact(rows), rtol=1e-6, atol=1e-8)


def test_rows_without_conflict_are_averaged():
    rows = torch.rand(5, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(gradhomog.pipeline("upgrad").combine(rows), rows.mean(0))


def test_small_gradients_are_projected_like_large_ones():
    # Seen in TorchJD 0.18: it treats a Gramian of trace below 1e-4 as zero and returns the mean, which conflicts here.
    rows = 1e-3 * torch.tensor([[3.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    found = gradhomog.pipeline("upgrad").combine(rows)
    torch.testing.assert_close(found, torch.tensor([7.5e-4, 1.25e-3], dtype=torch.float64))


def test_no_conflict_remains_where_norms_differ_by_a_large_factor():
    # Seen in TorchJD 0.18: with its ridge the least cosine is below -1e-5, and the direction more than 1 % off.
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(8, 20, generator=generator, dtype=torch.float64)
    rows = rows * torch.logspace(-2, 2, 8, dtype=torch.float64)[:, None]
    norms = rows.norm(dim=1)
    direction = gradhomog.pipeline("upgrad").combine(rows)
    assert float((rows @ direction / norms).min() / direction.norm()) > -1e-12


def test_opposite_rows_keep_the_part_orthogonal_to_them():
    rows = torch.tensor([[2.0, 0.0], [-1.0, 0.0], [0.5, 3.0]], dtype=torch.float64)
    direction = gradhomog.pipeline("upgrad").combine(rows)
    torch.testing.assert_close(direction, torch.tensor([0.0, 1.0], dtype=torch.float64))
