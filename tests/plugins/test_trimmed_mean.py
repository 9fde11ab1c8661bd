"""The trimmed mean against SciPy's, and the effect of outliers."""

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
