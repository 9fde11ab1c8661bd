"""Measures of conflict, compared with their definitions on the rows."""

import torch
from hypothesis import given

from gradhomog import conflict_rate, cosines, magnitude_similarity
from gradhomog.testing import jacobians


@given(jacobians(tasks=(2, 6)))
def test_measures_equal_their_definitions_on_the_rows(rows):
    gramian, n = rows @ rows.T, len(rows)
    for i in range(n):
        for j in range(n):
            a, b = rows[i].norm(), rows[j].norm()
            expected = 0.0 if a == 0 or b == 0 else float(rows[i] @ rows[j] / a / b)
            assert abs(float(cosines(gramian)[i, j]) - expected) < 1e-9
            similarity = 1.0 if a == b == 0 else float(2 * a * b / (a**2 + b**2))
            assert abs(float(magnitude_similarity(gramian)[i, j]) - similarity) < 1e-9
    negative = sum(bool(gramian[i, j] < 0) for i in range(n) for j in range(n) if i != j)
    assert float(conflict_rate(gramian)) == negative / (n * (n - 1))


def test_tiny_and_huge_gramians_have_the_cosines_of_their_rows():
    gramian = torch.tensor([[4.0, 2.0], [2.0, 4.0]], dtype=torch.float64)
    for factor in (1e-36, 1e36):
        torch.testing.assert_close(cosines(gramian * factor), cosines(gramian))
