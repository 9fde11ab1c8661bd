"""Derivatives of directions where a formula divides by zero: at zero, equal, opposite and orthogonal rows."""

import pytest
import torch

import gradhomog
from gradhomog import NotDifferentiableError
from tests.plugins.rows import normal

LENGTHS = [f"config(length='{length}')" for length in ("min", "max", "harmonic", "arithmetic", "geometric")]
SELECTORS = [
    "mgda", "gradvac", "imtl_g", "cagrad", "nash_mtl", "fairgrad", "aligned_mtl", "upgrad", "dualproj", "config",
    "sdmgrad", "pcgrad", "krum", "trimmed_mean", "gradnorm", "db_mtl", "excess_mtl", "moco", "graddrop",
    "lra", "metabalance", "multiadam", "static", "rlw",
    "sago", "sago(agreeing='both')", "nash_mtl(scale='paper')", *LENGTHS,
    "mgda(normalize='l2')", "reweight(beta=0, solver='fixed_point')",
]  # fmt: skip
MASKS = ["and_mask(tau=0.5)", "and_mask(tau=0.5, rescale=true)", "sand_mask(tau=0.1, k=0.3)"]
TWICE = [
    "imtl_g", "cagrad", "aligned_mtl", "aligned_mtl(scale_mode='median')", "aligned_mtl(scale_mode='rmse')", "upgrad",
    "dualproj", "config", *LENGTHS, "sdmgrad", "pcgrad", "gradvac", "graddrop", "rotate_rows", "pcd", "pcd(primary=1)",
    "dcgd", "dcgd(variant='projection')", "dcgd(variant='average')", "sand_mask", *MASKS, "multiadam", "metabalance",
    "lra", "db_mtl", "moco", "excess_mtl", "sago", "sago(agreeing='both')", "peakscale",
    "peakscale(warmup=1, spacing=0)",
]  # fmt: skip


def slopes(selector, rows, losses, **options):
    """Return the derivative w.r.t. the rows of one number computed from the first direction."""
    direction = gradhomog.pipeline(selector).combine(rows, losses=losses, create_graph=True)
    weights = torch.arange(1.0, rows.shape[1] + 1, dtype=rows.dtype)
    return torch.autograd.grad((direction * weights).sum(), rows, allow_unused=True, **options)[0]


@pytest.mark.parametrize("params", [2, 9], ids=["dependent rows", "independent rows"])
@pytest.mark.parametrize("selector", SELECTORS)
def test_derivatives_at_a_zero_row_do_not_depend_on_the_unit_of_length(selector, params):
    rows = normal(6, params, seed=5)
    rows[2] = 0
    losses = torch.tensor([0.5, 1.0, 2.0, 0.7, 1.5, 0.9], dtype=torch.float64)
    # In the paper's scale Nash-MTL has a constant length, so its derivative depends on a power of the unit.
    power = -1 if selector == "nash_mtl(scale='paper')" else 0
    expected = slopes(selector, rows.requires_grad_(), losses)
    for unit in (2.0**20, 2.0**-20):
        found = slopes(selector, (unit * rows).detach().requires_grad_(), losses) / unit**power
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("selector", TWICE)
def test_both_derivatives_are_finite_beside_zero_equal_and_opposite_rows(selector):
    beside_zero = torch.cat([normal(2, 5, seed=5), torch.zeros(1, 5)])
    degenerate = torch.tensor([[1.0, 2.0], [0.0, 0.0], [1.0, 2.0], [-1.0, -2.0]], dtype=torch.float64)
    equal_columns = torch.cat([torch.ones(3, 1), torch.zeros(3, 1), normal(3, 4, seed=5)], dim=1)
    for rows in (beside_zero, degenerate, equal_columns):
        first = slopes(selector, rows.requires_grad_(), torch.ones(len(rows)), create_graph=True)
        assert bool(first.isfinite().all())
        if first.requires_grad:  # otherwise the direction is linear in the rows
            [second] = torch.autograd.grad(first.square().sum(), rows)
            assert bool(second.isfinite().all())


@pytest.mark.parametrize("selector", ["imtl_g", "config", "config(length='geometric')", "cagrad", "dcgd"])
def test_both_derivatives_are_exact_at_orthogonal_rows_of_one_length(selector):
    # Eigenvalues are equal there, and derivatives of eigenvectors infinite.
    losses = torch.ones(3, dtype=torch.float64)

    def direction(rows):
        return gradhomog.pipeline(selector).combine(rows, losses, create_graph=True)

    rows = 2 * torch.eye(3, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(direction, rows.requires_grad_())
    assert torch.autograd.gradgradcheck(direction, rows)


def test_a_wrapped_method_that_is_not_differentiable_raises_with_the_name_of_its_wrapper():
    with pytest.raises(NotDifferentiableError, match="cr_mogm"):
        gradhomog.pipeline("cr_mogm(method='famo')").combine(
            torch.eye(4, requires_grad=True), torch.ones(4), create_graph=True
        )
