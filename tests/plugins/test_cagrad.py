"""CAGrad against TorchJD where that is exact, its scales, and zero rows."""

import pytest
import torch
from hypothesis import given

import gradhomog
from gradhomog.testing import jacobians

CONFLICTING = torch.tensor([[3.0, 0.0, 1.0], [-1.0, 1.0, 0.5], [0.0, 2.0, -1.0]], dtype=torch.float64)


@given(jacobians(spread=2))
def test_the_worst_task_gains_no_less_than_with_the_mean(rows):
    paper = gradhomog.pipeline("cagrad(scale='paper')").combine(rows)
    size = float(rows.norm(dim=1).max())
    assert float((rows @ paper).min()) >= float((rows @ rows.mean(0)).min()) - 1e-9 * size**2
    assert float((paper - rows.mean(0)).norm()) <= 0.4 * float(rows.mean(0).norm()) + 1e-7 * size


def test_the_mean_scale_divides_by_one_plus_the_radius():
    paper = gradhomog.pipeline("cagrad(c=0.5, scale='paper')").combine(CONFLICTING)
    torch.testing.assert_close(gradhomog.pipeline("cagrad(c=0.5)").combine(CONFLICTING), paper / 1.5)


def test_no_radius_is_the_mean():
    torch.testing.assert_close(gradhomog.pipeline("cagrad(c=0)").combine(CONFLICTING), CONFLICTING.mean(0))


def test_beside_a_zero_row_the_step_is_the_projection_unless_the_row_is_dropped():
    rows = torch.cat([CONFLICTING[:2], torch.zeros(1, 3, dtype=torch.float64)])
    kept = gradhomog.pipeline("cagrad(c=0.9, scale='paper')").combine(rows)
    torch.testing.assert_close(kept, gradhomog.pipeline("dualproj").combine(rows))
    dropped = gradhomog.pipeline("cagrad(zero_rows='drop')").combine(rows)
    torch.testing.assert_close(dropped, gradhomog.pipeline("cagrad").combine(CONFLICTING[:2]))
    assert not gradhomog.pipeline("cagrad(zero_rows='drop')").combine(torch.zeros(3, 2)).any()


def test_opposite_rows_of_one_length_have_no_mean_and_no_step():
    assert not gradhomog.pipeline("cagrad").combine(torch.tensor([[1.0, 2.0], [-1.0, -2.0]])).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_whose_hull_nearly_holds_zero_have_no_conflict_in_every_precision(dtype):
    rows = torch.tensor([[1, 0.1, 0.3], [-0.7, -0.07, -0.21], [0.2, 1, -0.5], [0.1, 0.4, 0.9]], dtype=dtype)
    direction = gradhomog.pipeline("cagrad(c=0.9, scale='paper')").combine(rows)
    assert float((rows @ direction).min()) > -1e-6
