"""Derivatives at zero rows: if the direction scales with the rows, they do not depend on the unit of the rows."""

from __future__ import annotations

import pytest
import torch

import gradhomog

SELECTORS = [
    "mgda", "gradvac", "imtl_g", "cagrad", "nash_mtl", "fairgrad", "aligned_mtl", "upgrad", "dualproj", "config",
    "sdmgrad", "pcgrad", "krum", "trimmed_mean", "gradnorm", "db_mtl", "excess_mtl", "moco", "graddrop",
    "lra", "metabalance", "multiadam",
    "static", "rlw", "nash_mtl(scale='paper')",
    *(f"config(length='{length}')" for length in ("min", "max", "harmonic", "arithmetic", "geometric")),
]  # fmt: skip


def slopes(selector, rows, losses):
    """Return the derivative w.r.t. the rows of one number computed from the first direction."""
    jacobian = rows.clone().requires_grad_()
    direction = gradhomog.pipeline(selector).combine(jacobian, losses=losses, create_graph=True)
    weights = torch.arange(1.0, rows.shape[1] + 1, dtype=rows.dtype)
    return torch.autograd.grad((direction * weights).sum(), jacobian, allow_unused=True)[0]


@pytest.mark.parametrize("params", [2, 9], ids=["dependent rows", "independent rows"])
@pytest.mark.parametrize("selector", SELECTORS)
def test_derivatives_at_a_zero_row_do_not_depend_on_the_unit_of_length(selector, params):
    rows = torch.randn(6, params, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    rows[2] = 0
    losses = torch.tensor([0.5, 1.0, 2.0, 0.7, 1.5, 0.9], dtype=torch.float64)
    # In the paper's scale Nash-MTL has a constant length, so its derivative depends on a power of the unit.
    power = -1 if selector == "nash_mtl(scale='paper')" else 0
    expected = slopes(selector, rows, losses)
    for unit in (2.0**20, 2.0**-20):
        found = slopes(selector, unit * rows, losses) / unit**power
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("unit", [2.0**20, 1.0, 2.0**-20])
def test_two_tasks_one_of_them_zero_have_finite_derivatives_in_every_unit(unit):
    for selector in SELECTORS:
        found = slopes(selector, unit * torch.tensor([[3.0, 1.0], [0.0, 0.0]], dtype=torch.float64), torch.ones(2))
        assert torch.isfinite(found).all(), selector
