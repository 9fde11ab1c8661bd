"""MGDA against TorchJD where that is exact, its optimality, and its options."""

import pytest
import torch
import torchjd.aggregation
from hypothesis import given

import gradhomog
from gradhomog import OptionError
from gradhomog.testing import jacobians


@pytest.mark.parametrize("seed", range(10))
def test_two_comparable_rows_equal_torchjd(seed):
    rows = torch.randn(2, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = torchjd.aggregation.MGDA(epsilon=1e-9, max_iters=10_000)(rows)
    torch.testing.assert_close(gradhomog.pipeline("mgda").combine(rows), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("tasks", [4, 8, 16])
def test_never_longer_than_torchjds_vector(tasks):
    generator = torch.Generator().manual_seed(tasks)
    for _ in range(5):
        rows = torch.randn(tasks, 20, generator=generator, dtype=torch.float64)
        rows = rows * 10 ** (2 * torch.rand(tasks, 1, generator=generator, dtype=torch.float64) - 1)
        ours = gradhomog.pipeline("mgda").combine(rows).norm()
        assert ours <= torchjd.aggregation.MGDA()(rows).norm() + 1e-12


@given(jacobians())
def test_every_task_descends_by_at_least_the_squared_norm(rows):
    direction = gradhomog.pipeline("mgda").combine(rows)
    norms = rows.norm(dim=1)
    assert (rows @ direction >= direction @ direction - 1e-9 * norms * norms.min()).all()


def test_a_zero_row_stops_the_step_unless_it_is_dropped():
    rows = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    assert gradhomog.pipeline("mgda").combine(rows).tolist() == [0.0, 0.0]
    dropped = gradhomog.pipeline("mgda(zero_rows='drop')").combine(rows)
    torch.testing.assert_close(dropped, gradhomog.pipeline("mgda").combine(rows[[0, 2]]))


def test_opposite_rows_are_pareto_stationary():
    rows = torch.tensor([[1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64)
    assert float(gradhomog.pipeline("mgda").combine(rows).abs().max()) < 1e-12


def test_normalising_solves_for_the_normalised_rows_and_weighs_those_given():
    rows = torch.tensor([[10.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert gradhomog.pipeline("mgda(normalize='l2')").homogenize(rows).weights.tolist() == pytest.approx([1, 1])
    by_loss = gradhomog.pipeline("mgda(normalize='loss')").homogenize(rows, torch.tensor([10.0, 1.0]))
    assert by_loss.weights.tolist() == pytest.approx([1, 1])


def test_normalising_by_a_loss_that_is_not_positive_is_refused():
    with pytest.raises(OptionError, match="must be positive"):
        gradhomog.pipeline("mgda(normalize='loss')").combine(torch.eye(2), losses=[0.0, 1.0])
