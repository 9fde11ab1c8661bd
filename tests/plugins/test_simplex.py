"""The projection onto the simplex against SciPy's root search, a closed form and its optimality conditions."""

import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradhomog_plugins._simplex import project_onto_simplex

vectors = st.lists(st.floats(-5, 5), min_size=1, max_size=7).map(lambda v: torch.tensor(v, dtype=torch.float64))


@given(vectors)
def test_the_projection_is_on_the_simplex_and_no_point_of_it_is_nearer(values):
    found = project_onto_simplex(values)
    assert (found >= 0).all()
    assert abs(float(found.sum()) - 1) < 1e-12
    # x is nearest if and only if ⟨e − x, v − x⟩ ≤ 0 for every corner e of the simplex.
    towards = torch.eye(len(values), dtype=torch.float64) - found
    assert (towards @ (values - found) <= 1e-12).all()


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_a_root_search_by_scipy(seed):
    values = torch.randn(9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3**seed

    def surplus(threshold):
        return float((values - threshold).clamp_min(0).sum()) - 1

    low, high = float(values.min()) - 1, float(values.max())
    threshold = scipy.optimize.brentq(surplus, low, high, xtol=1e-14)
    torch.testing.assert_close(project_onto_simplex(values), (values - threshold).clamp_min(0), rtol=0, atol=1e-12)


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_two_values_have_the_closed_form(a, b):
    share = min(max((1 + a - b) / 2, 0.0), 1.0)
    found = project_onto_simplex(torch.tensor([a, b], dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor([share, 1 - share], dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("shift", [0.0, 1e3, -1e15, 1e18])
def test_a_constant_added_to_all_values_changes_nothing(shift):
    values = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64) * (1 if abs(shift) < 1e4 else 0)
    expected = values if abs(shift) < 1e4 else torch.full_like(values, 1 / 3)
    torch.testing.assert_close(project_onto_simplex(values + shift), expected, rtol=0, atol=1e-12)


def test_huge_differences_give_a_corner_and_minus_infinity_gives_zero():
    assert project_onto_simplex(torch.tensor([-1e30, 1e30, 0.0])).tolist() == [0.0, 1.0, 0.0]
    assert project_onto_simplex(torch.tensor([0.0, -torch.inf, 0.0])).tolist() == [0.5, 0.0, 0.5]


def test_a_batch_is_projected_vector_by_vector():
    values = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = project_onto_simplex(values)
    one_by_one = torch.stack([project_onto_simplex(vector) for vector in values.reshape(-1, 5)]).reshape(4, 3, 5)
    assert torch.equal(found, one_by_one)
    mapped = torch.func.vmap(torch.func.vmap(project_onto_simplex))(values)
    assert torch.equal(found, mapped)


def test_it_is_twice_differentiable_and_compiles_whole():
    values = torch.tensor([0.9, 0.3, 0.25, -1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(project_onto_simplex, values)
    assert torch.autograd.gradgradcheck(project_onto_simplex, values)
    compiled = torch.compile(project_onto_simplex, fullgraph=True, backend="eager")
    assert torch.equal(compiled(values), project_onto_simplex(values))
