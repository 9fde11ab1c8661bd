"""Measures of conflict and distance; homogenizing norms and directions reduces distances, with exceptions."""

import math
import operator

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gradhomog
from gradhomog import OptionError, conflict_rate, cosines, distances
from gradhomog.testing import jacobians


def equalised(rows):
    """Return the rows after RotoGBML's reweighting at its fixed point with β = 0: all have the mean norm."""
    weights = gradhomog.pipeline("reweight(beta=0, solver='fixed_point')").homogenize(rows).weights
    norms = rows.norm(dim=1)
    return (weights * norms.sum() / (weights * norms).sum())[:, None] * rows


def sum_of_squares(rows):
    return float(torch.cdist(rows, rows).square().sum())


def random_rows(seed, tasks=4, params=6):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(tasks, params, generator=generator, dtype=torch.float64)
    return rows * 10 ** (2 * torch.rand(tasks, 1, generator=generator, dtype=torch.float64) - 1)


@given(jacobians(tasks=(1, 6)))
def test_the_law_of_cosines_is_an_identity(rows):
    found = distances(rows @ rows.T)
    squares = rows.square().sum(1)
    exact = (rows[:, None] - rows[None]).square().sum(-1)
    assert float(((found.square() - exact).abs() / (squares[:, None] + squares).clamp(min=1e-300)).max()) < 2e-15
    assert (found.diagonal() == 0).all()


def test_distances_are_exact_for_an_exact_gramian_whose_trace_is_rounded():
    """Rows of length 2²⁶ and 2²⁶ + 1 have an exact Gramian, whose trace cannot be represented as a float."""
    long, longer = 2.0**26, 2.0**26 + 1
    gramian = torch.tensor([[long * long, long * longer], [long * longer, longer * longer]], dtype=torch.float64)
    assert float(distances(gramian)[0, 1]) == 1
    assert float(gramian[0, 0] + gramian[1, 1] - 2 * gramian[0, 1]) == 0  # the textbook order


def test_nearly_equal_rows_have_distances_accurate_to_the_stated_rounding():
    generator = torch.Generator().manual_seed(0)
    row, step = torch.nn.functional.normalize(torch.randn(2, 1000, generator=generator, dtype=torch.float64), dim=1)
    for length in (1e-2, 1e-4, 1e-6):
        rows = [row.tolist(), (row + length * step).tolist()]
        # Exact sums, because the rounding of a matrix product depends on the processor's instruction set.
        gramian = [[math.fsum(map(operator.mul, one, other)) for other in rows] for one in rows]
        found = float(distances(torch.tensor(gramian, dtype=torch.float64))[0, 1])
        assert abs(found**2 - length**2) < 4 * 2**-53 * 2 * (1 + length) ** 2
        assert found == pytest.approx(length, rel=1e-3)


def test_distances_have_gradients_that_are_zero_at_distance_zero():
    rows = random_rows(0).requires_grad_()
    assert torch.autograd.gradcheck(lambda r: distances(r @ r.T).triu(1), rows)
    equal = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    distances(equal @ equal.T).sum().backward()
    assert equal.grad.tolist() == [[0.0] * 3] * 2


def test_distances_scale_with_the_rows_and_support_batches():
    rows = torch.stack([random_rows(seed) for seed in range(3)])
    found = distances(rows @ rows.mT)
    torch.testing.assert_close(found, torch.cdist(rows, rows), rtol=1e-7, atol=1e-7)
    for factor in (1e-18, 1e18):
        torch.testing.assert_close(
            distances((factor * rows) @ (factor * rows).mT) / factor, found, rtol=1e-7, atol=1e-7
        )


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_a_gramian_that_is_not_square_raises(shape):
    with pytest.raises(OptionError, match=r"`gramian` must have shape \[..., tasks, tasks\]; got \(.*rows @ rows.T"):
        distances(torch.zeros(shape))


def test_equal_norms_alone_can_increase_a_distance():
    """Norms (0.1, 0.1, 10), with the short rows opposite, are set to their mean 3.4: d_12 grows from 0.2 to 6.8."""
    rows = torch.tensor([[0.1, 0.0], [-0.1, 0.0], [0.0, 10.0]], dtype=torch.float64)
    before, after = distances(rows @ rows.T), distances((new := equalised(rows)) @ new.T)
    assert new.norm(dim=1).tolist() == pytest.approx([3.4] * 3)
    assert float(before[0, 1]) == pytest.approx(0.2)
    assert float(after[0, 1]) == pytest.approx(6.8)
    assert sum_of_squares(new) < sum_of_squares(rows)  # the other distances decrease by more


@given(rows=jacobians(tasks=(2, 2), params=(2, 6)))
def test_the_distance_of_two_tasks_never_increases(rows):
    assume(bool((rows.norm(dim=1) > 0).all()))
    new = equalised(rows)
    assert new.norm(dim=1).tolist() == pytest.approx([float(rows.norm(dim=1).mean())] * 2)
    assert float((new[0] - new[1]).norm()) <= float((rows[0] - rows[1]).norm()) + 1e-9 * float(rows.norm())


@given(seed=st.integers(0, 2**31), tasks=st.integers(2, 6), share=st.floats(0, 1))
def test_the_sum_of_squares_decreases_if_all_pairs_have_the_same_cosine(seed, tasks, share):
    """N Σ n_i² − |Σ g_i|² decreases by at least (N − 1 + cos)(Σ n_i² − N n̄²); this includes orthogonal rows."""
    cosine = -1 / (tasks - 1) + share * (1 + 1 / (tasks - 1))
    gramian = torch.full((tasks, tasks), cosine, dtype=torch.float64).fill_diagonal_(1)
    values, vectors = torch.linalg.eigh(gramian)
    generator = torch.Generator().manual_seed(seed)
    norms = 10 ** (2 * torch.rand(tasks, 1, generator=generator, dtype=torch.float64) - 1)
    rows = norms * (vectors * values.clamp(min=0).sqrt())
    assert sum_of_squares(equalised(rows)) <= sum_of_squares(rows) * (1 + 1e-9)


def test_the_sum_of_squares_can_increase():
    """Nine equal rows, and a tiny opposite row that is scaled to their norm."""
    rows = torch.tensor([[1.0]] * 9 + [[-0.01]], dtype=torch.float64)
    assert sum_of_squares(equalised(rows)) > 3 * sum_of_squares(rows)


@given(jacobians(tasks=(2, 6)))
def test_measures_equal_their_definitions_on_the_rows(rows):
    gramian, n = rows @ rows.T, len(rows)
    for i in range(n):
        for j in range(n):
            a, b = rows[i].norm(), rows[j].norm()
            expected = 0.0 if a == 0 or b == 0 else float(rows[i] @ rows[j] / a / b)
            assert abs(float(cosines(gramian)[i, j]) - expected) < 1e-9
    negative = sum(bool(gramian[i, j] < 0) for i in range(n) for j in range(n) if i != j)
    assert float(conflict_rate(gramian)) == negative / (n * (n - 1))


def test_tiny_and_huge_gramians_have_the_cosines_of_their_rows():
    gramian = torch.tensor([[4.0, 2.0], [2.0, 4.0]], dtype=torch.float64)
    for factor in (1e-36, 1e36):
        torch.testing.assert_close(cosines(gramian * factor), cosines(gramian))
