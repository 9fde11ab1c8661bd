"""DualProj against least squares on the rows, and TorchJD where that is exact."""

import pytest
import scipy.optimize
import torch
import torchjd.aggregation
from hypothesis import given
from torchjd.linalg import QuadprogProjector

import gradhomog
from gradhomog.testing import jacobians


@given(jacobians(spread=3))
def test_the_direction_is_the_projection_of_the_mean_on_the_dual_cone(rows):
    mean = rows.mean(0)
    added = scipy.optimize.nnls(rows.T.numpy(), -mean.numpy())[0]
    expected = mean + torch.from_numpy(added) @ rows
    found = gradhomog.pipeline("dualproj").combine(rows)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8 * float(rows.norm(dim=1).max()))


@pytest.mark.parametrize("tasks", [2, 4, 8])
def test_independent_rows_equal_torchjd_without_its_ridge(tasks):
    rows = torch.randn(tasks, 20, generator=torch.Generator().manual_seed(tasks), dtype=torch.float64)
    rows = rows - 0.9 * rows.mean(0) - 0.5 * rows[:1]
    exact = torchjd.aggregation.DualProj(projector=QuadprogProjector(norm_eps=0.0, reg_eps=1e-12))
    torch.testing.assert_close(gradhomog.pipeline("dualproj").combine(rows), exact(rows), rtol=1e-6, atol=1e-8)


def test_rows_without_conflict_are_averaged():
    rows = torch.rand(5, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(gradhomog.pipeline("dualproj").combine(rows), rows.mean(0))


def test_small_gradients_are_projected_like_large_ones():
    # Seen in TorchJD 0.18: it treats a Gramian of trace below 1e-4 as zero and returns the mean, which conflicts here.
    rows = 1e-3 * torch.tensor([[3.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(
        gradhomog.pipeline("dualproj").combine(rows), torch.tensor([7.5e-4, 7.5e-4], dtype=torch.float64)
    )


def test_opposite_rows_keep_the_part_orthogonal_to_them():
    rows = torch.tensor([[2.0, 0.0], [-1.0, 0.0], [0.5, 3.0]], dtype=torch.float64)
    direction = gradhomog.pipeline("dualproj").combine(rows)
    torch.testing.assert_close(direction, torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_a_zero_row_counts_in_the_mean_and_nowhere_else():
    rows = torch.tensor([[3.0, 0.0], [0.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    two_thirds = gradhomog.pipeline("dualproj").combine(rows[[0, 2]]) * 2 / 3
    torch.testing.assert_close(gradhomog.pipeline("dualproj").combine(rows), two_thirds)
