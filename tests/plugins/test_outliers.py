"""Krum and the trimmed mean against scores written out, SciPy, ties, and outliers."""

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog.testing import jacobians
from gradhomog_plugins._columns import COLUMNS
from gradhomog_plugins.trimmed_mean import mean_of_middle
from tests.plugins.rows import combine_in_tensors, normal


def scores(rows, byzantine):
    """Σ ‖g_i − g_j‖² over the N − f − 2 nearest others, on the vectors."""
    found = []
    for i, row in enumerate(rows):
        squares = sorted(float((row - other).square().sum()) for j, other in enumerate(rows) if j != i)
        found.append(sum(squares[: len(rows) - byzantine - 2]))
    return found


@pytest.mark.parametrize("selected", [1, 2, 4])
@pytest.mark.parametrize("byzantine", [0, 1, 2])
def test_the_mean_of_the_rows_with_the_lowest_scores(byzantine, selected):
    rows = normal(6, 3, seed=selected)
    by_score = sorted(range(6), key=scores(rows, byzantine).__getitem__)
    found = gradhomog.pipeline(f"krum(n_byzantine={byzantine}, n_selected={selected})").combine(rows)
    torch.testing.assert_close(found, rows[by_score[:selected]].mean(0))


def test_the_papers_squares_can_choose_another_row_than_distances():
    rows = torch.tensor([[-5.0], [6.0], [4.0], [-1.0], [-3.0], [3.0]])[:, [0, 0]]
    assert min(range(6), key=scores(rows, 0).__getitem__) == 3
    assert gradhomog.pipeline("krum").combine(rows).tolist() == [-1.0, -1.0]
    assert gradhomog.pipeline("krum(squared=false)").combine(rows).tolist() == [3.0, 3.0]


def test_with_one_neighbour_the_tied_row_nearer_to_the_others_is_selected():
    # The two nearest rows always have equal scores: with three tasks the step was their mean.
    rows = torch.tensor([[0.0, 1.0], [9.0, 9.0], [0.0, 2.0]])
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        assert gradhomog.pipeline("krum").combine(rows[order]).tolist() == [0.0, 2.0]


def test_equal_scores_share_the_remaining_places():
    rows = torch.tensor([[0.0], [1.0], [-1.0], [5.0], [-5.0]])[:, [0, 0]]
    weights = gradhomog.pipeline("krum(n_byzantine=1, n_selected=2)").homogenize(rows).weights
    assert weights.tolist() == [2.5, 1.25, 1.25, 0, 0]


def test_of_two_rows_the_mean_and_of_one_the_row():
    rows = normal(2, 3)
    torch.testing.assert_close(gradhomog.pipeline("krum").combine(rows), rows.mean(0))
    torch.testing.assert_close(gradhomog.pipeline("krum").combine(rows[:1]), rows[0])


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 4, 0, 1, 3]])
def test_duplicates_tie_in_every_order(order):
    a, b, e = torch.randn(3, 3001, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    e = e + a  # nearer to a than to b
    rows = torch.stack([a, b, a, b, e])[order]
    found = gradhomog.pipeline("krum(n_byzantine=2)").homogenize(rows).weights
    torch.testing.assert_close(found, torch.tensor([2.5, 0.0, 2.5, 0.0, 0.0], dtype=torch.float64)[order])


@given(jacobians(tasks=(1, 6)), st.integers(0, 2))
def test_it_equals_scipy(rows, trim):
    if 2 * trim >= len(rows):
        return
    found = gradhomog.pipeline(f"trimmed_mean(trim={trim})").combine(rows)
    scale = 1e-12 * float(rows.abs().max())
    share = scipy.stats.trim_mean(rows.numpy(), (trim + 0.5) / len(rows) if trim else 0.0)
    torch.testing.assert_close(found, torch.from_numpy(share), rtol=1e-9, atol=scale)


@pytest.mark.parametrize("tasks", [3, 4, 7, 16, 33])
def test_a_share_is_rounded_down_as_scipy_does(tasks):
    rows = normal(tasks, 40)
    for share in (0.0, 0.1, 0.25, 0.49):
        found = gradhomog.pipeline(f"trimmed_mean(trim={share})").combine(rows)
        torch.testing.assert_close(found, torch.from_numpy(scipy.stats.trim_mean(rows.numpy(), share)))


def test_one_broken_task_moves_the_direction_no_further_than_the_others_reach():
    rows = normal(5, 30)
    bounds = rows[:4].min(0).values, rows[:4].max(0).values
    for broken in (1e30, -1e30):
        rows[4] = broken
        found = gradhomog.pipeline("trimmed_mean(trim=1)").combine(rows.float())
        assert ((found >= bounds[0].float()) & (found <= bounds[1].float())).all()


def test_blocks_and_tensors_change_nothing():
    params = 2 * COLUMNS + 7
    rows = normal(5, params, dtype=torch.float32)
    whole = gradhomog.pipeline("trimmed_mean").combine(rows)
    torch.testing.assert_close(whole, mean_of_middle(rows, 1))
    torch.testing.assert_close(combine_in_tensors(gradhomog.pipeline("trimmed_mean"), rows), whole)
