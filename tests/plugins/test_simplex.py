"""The projection onto the simplex against SciPy's root search, a closed form and its optimality conditions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradhomog_plugins.moco import project_onto_simplex

vectors = st.lists(st.floats(-5, 5), min_size=1, max_size=7).map(lambda v: torch.tensor(v, dtype=torch.float64))


@given(vectors)
def test_the_projection_is_on_the_simplex_and_no_point_of_it_is_nearer(values):
    found = project_onto_simplex(values)
    assert (found >= 0).all()
    assert abs(float(found.sum()) - 1) < 1e-12
    # x is nearest if and only if ⟨e − x, v − x⟩ ≤ 0 for every corner e of the simplex.
    towards = torch.eye(len(values), dtype=torch.float64) - found
    assert (towards @ (values - found) <= 1e-12).all()


@pytest.mark.parametrize("shift", [0.0, 1e3, -1e15, 1e18])
def test_a_constant_added_to_all_values_changes_nothing(shift):
    values = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64) * (1 if abs(shift) < 1e4 else 0)
    expected = values if abs(shift) < 1e4 else torch.full_like(values, 1 / 3)
    torch.testing.assert_close(project_onto_simplex(values + shift), expected, rtol=0, atol=1e-12)


def test_huge_differences_give_a_corner_and_minus_infinity_gives_zero():
    assert project_onto_simplex(torch.tensor([-1e30, 1e30, 0.0])).tolist() == [0.0, 1.0, 0.0]
    assert project_onto_simplex(torch.tensor([0.0, -torch.inf, 0.0])).tolist() == [0.5, 0.0, 0.5]
