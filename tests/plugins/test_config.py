"""ConFIG against TorchJD where that is exact, least squares on the rows, and its properties."""

import pytest
import scipy.linalg
import torch
from hypothesis import assume, given

import gradhomog
from gradhomog.testing import jacobians
from tests.plugins.rows import normal, units


@given(jacobians(tasks=(1, 5), params=(6, 9), zero=False, duplicate=False, opposite=False))
def test_the_step_has_equal_positive_cosines_with_independent_rows(rows):
    assume(float(torch.linalg.cond(units(rows))) < 100)
    direction = gradhomog.pipeline("config").combine(rows)
    cosines = units(rows) @ direction / direction.norm()
    torch.testing.assert_close(cosines, cosines.mean().expand_as(cosines), rtol=1e-9, atol=0)
    assert float(cosines.min()) > 0


@pytest.mark.parametrize(
    ("length", "value"),
    [("min", 1.0), ("max", 4.0), ("harmonic", 3 / (1 + 1 / 2 + 1 / 4)), ("arithmetic", 7 / 3), ("geometric", 2.0)],
)
def test_each_length_model_projects_rows_of_that_length(length, value):
    rows = torch.cat([units(normal(3, 6)) * torch.tensor([[1.0], [2.0], [4.0]]), torch.zeros(1, 6)])
    direction = torch.from_numpy(scipy.linalg.lstsq(units(rows[:3]).numpy(), [1.0, 1.0, 1.0])[0])
    direction = direction / direction.norm()
    expected = value * (units(rows[:3]) @ direction).sum() * direction
    found = gradhomog.pipeline(f"config(length='{length}', scale='paper')").combine(rows)
    torch.testing.assert_close(found, expected)


def test_dependent_rows_get_the_nearest_cosines_in_every_precision():
    one, other = normal(2, 10_000).float()
    rows = torch.stack([one, other, one + other])
    unit = units(rows.double())
    direction = unit[:2].T @ torch.from_numpy(scipy.linalg.lstsq((unit @ unit[:2].T).numpy(), [1.0, 1.0, 1.0])[0])
    direction = direction / direction.norm()
    expected = (rows.double() @ direction).mean() * direction
    pipe = gradhomog.pipeline("config")
    torch.testing.assert_close(pipe.combine(rows.double()), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(pipe.combine(rows), expected.float(), rtol=1e-3, atol=1e-3)


def test_many_float32_parameters_cost_no_rank():
    basis = torch.linalg.qr(normal(3, 200_000).T)[0].T
    near = torch.tensor([[1.0, 0.0, 0.0], [0.999, 0.0268, 0.0358], [0.0, 1.0, 0.0]], dtype=torch.float64)
    rows = (near @ basis).float()

    def spread(direction):
        cosines = units(rows.double()) @ direction.double() / direction.double().norm()
        return float(cosines.max() - cosines.min())

    assert spread(gradhomog.pipeline("config").combine(rows)) < 1e-3
