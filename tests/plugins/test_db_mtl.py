"""DB-MTL against the reference code's recursion written out, and its balance of the rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog import OptionError
from gradhomog.testing import jacobians
from tests.plugins.rows import normal


def reference(steps, beta, sigma):
    """The last direction of LibMTL's DB_MTL, without its epsilons: steps are pairs of rows and losses."""
    average = torch.zeros_like(steps[0][0])
    for count, (rows, losses) in enumerate(steps, start=1):
        logarithmic = rows / torch.as_tensor(losses, dtype=rows.dtype)[:, None]
        average = logarithmic + beta / count**sigma * (average - logarithmic)
    norms = average.norm(dim=1)
    return (norms.max() / norms) @ average


def history(count, tasks=3, params=7):
    return [
        (normal(tasks, params, seed=s) * 10.0 ** (s % 3), (normal(tasks, seed=50 + s).abs() + 0.1))
        for s in range(count)
    ]


@pytest.mark.parametrize(("beta", "sigma"), [(0.9, 0.0), (0.5, 0.5), (0.0, 0.0)])
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_at_the_papers_scale_it_is_the_reference_codes_recursion(beta, sigma, steps):
    pipe = gradhomog.pipeline(f"db_mtl(beta={beta}, sigma={sigma}, scale='paper')")
    shown = history(steps)
    for rows, losses in shown:
        found = pipe.combine(rows, losses=losses)
    torch.testing.assert_close(found, reference(shown, beta, sigma), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_the_scales_differ_in_length_alone(sigma):
    paper = gradhomog.pipeline(f"db_mtl(sigma={sigma}, scale='paper')")
    mean = gradhomog.pipeline(f"db_mtl(sigma={sigma})")
    lost = 1.0
    for count, (rows, losses) in enumerate(history(5), start=1):
        lost *= 0.9 / count**sigma
        expected = paper.combine(rows, losses=losses) * losses.min() / 3 / (1 - lost)
        torch.testing.assert_close(mean.combine(rows, losses=losses), expected, rtol=1e-9, atol=1e-12)


@given(jacobians(tasks=(1, 5), zero=False), st.integers(0, 100))
def test_without_average_all_rows_are_as_long_as_the_longest_of_relative_loss(rows, seed):
    losses = normal(len(rows), seed=seed).abs() + 0.01
    relative = rows.norm(dim=1) / losses
    result = gradhomog.pipeline("db_mtl(beta=0)").homogenize(rows, losses, inspect=True)
    expected = (relative.max() * losses.min()).expand(len(rows))
    torch.testing.assert_close(result.stages[-1].gramian.diagonal().sqrt(), expected, rtol=1e-9, atol=0)


def test_later_stages_receive_the_balanced_rows():
    rows = torch.diag(torch.tensor([100.0, 1.0], dtype=torch.float64))
    after = gradhomog.pipeline("db_mtl + static(weights=[1, 0])").combine(rows, losses=[1.0, 1.0])
    torch.testing.assert_close(after, torch.tensor([100.0, 0.0], dtype=torch.float64))


def test_without_log_no_losses_are_needed_and_rows_are_averaged_as_they_are():
    pipe, ones = gradhomog.pipeline("db_mtl(log=false)"), gradhomog.pipeline("db_mtl")
    for rows, _ in history(3):
        found = pipe.combine(rows)
        torch.testing.assert_close(found, ones.combine(rows, losses=torch.ones(3)), rtol=1e-12, atol=0)


def test_a_task_with_a_loss_of_zero_or_no_gradient_is_ignored_until_it_has_a_gradient():
    rows = torch.eye(3, dtype=torch.float64)
    pipe = gradhomog.pipeline("db_mtl")
    torch.testing.assert_close(pipe.combine(rows, losses=[1.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 1.0]).double() / 3)
    later = pipe.combine(rows, losses=[1.0, 1.0, 1.0])
    torch.testing.assert_close(later, torch.ones(3, dtype=torch.float64) / 3)
    assert gradhomog.pipeline("db_mtl").combine(rows, losses=[0.0, 0.0, 0.0]).tolist() == [0.0, 0.0, 0.0]
    rows[1] = 0
    torch.testing.assert_close(gradhomog.pipeline("db_mtl").combine(rows, losses=[1.0] * 3), rows.mean(0))


def test_rows_that_a_loss_near_zero_makes_too_long_raise_and_change_no_state():
    pipe = gradhomog.pipeline("db_mtl(scale='paper')")
    with pytest.raises(gradhomog.GradhomogError, match="db_mtl"):
        pipe.combine(torch.eye(2), losses=[1.0, 1e-100], domains=["a", "b"])
    assert pipe.state_dict()["0:db_mtl"]["counts"] == {}


@pytest.mark.parametrize(("row", "loss"), [(1.0, 1e-100), (1e-40, 1e-40)], ids=["too long", "subnormal"])
def test_averages_that_a_loss_near_zero_has_made_useless_are_restarted(row, loss):
    # The smallest loss scales the rows; in the next step another loss is the smallest, and the rows overflowed.
    pipe = gradhomog.pipeline("db_mtl")
    pipe.combine(torch.tensor([[1.0, 0.0], [0.0, row]]), losses=[1.0, loss], domains=["a", "b"])
    found = pipe.combine(torch.eye(2), losses=[1.0, 2.0], domains=["a", "b"])
    assert torch.equal(found, gradhomog.pipeline("db_mtl").combine(torch.eye(2), losses=[1.0, 2.0]))
    assert pipe.state_dict()["0:db_mtl"]["counts"] == {"a": 1, "b": 1}


def test_rows_that_cannot_have_equal_lengths_in_their_dtype_raise_with_both_tasks():
    with pytest.raises(OptionError, match=r"norms from 1e-40 \(task 'b'\) to 1 \(task 'a'\)\. .* near zero\."):
        gradhomog.pipeline("db_mtl").combine(
            torch.tensor([[1.0, 0.0], [0.0, 1e-40]]), losses=[1.0, 1.0], domains=["a", "b"]
        )


def test_half_precision_rows_may_be_longer_than_their_largest_number():
    rows = torch.full((2, 4096), 2000.0, dtype=torch.float16)  # 128 000 long, and 65 504 is the largest
    found = gradhomog.pipeline("db_mtl").combine(rows, losses=[1.0, 1.0])
    torch.testing.assert_close(found, rows[0], rtol=1e-2, atol=0)
