"""Properties of every first-party homogenizer, by its claims: add a line to METHODS and all of them run on it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gradhomog
from gradhomog.registry import installed
from tests.strategies import jacobians

# Texts with which each built-in is checked.
METHODS = [
    "static", "static(weights=[1, 2, 3, 4, 5, 6])", "static(weights='random')",
    "pcgrad", "pcgrad(order='fixed')",
    "gradnorm", "gradnorm(alpha=0, key='domain')",
    "mgda", "mgda(normalize='l2')", "mgda(normalize='loss+', zero_rows='drop')",
    "reweight(lr=0.1)", "reweight(solver='fixed_point', max_weight=2)", "reweight(beta=0, key='domain', scale='norm')",
    "rotate(lr=0.1)", "rotate(parameterization='geodesic', variant='paper', lr=0.1)",
    "rotate_rows", "rotate_rows(max_angle=0.3)",
    "rotogbml(isi=false, rotate={'lr': 0.1})",
    "isi", "isi(temperature=inf, sampling='multinomial', until=1)",
]  # fmt: skip


def combine(text, rows, steps=1):
    losses = torch.linspace(0.5, 1.5, len(rows), dtype=torch.float64)
    pipe = gradhomog.pipeline(text)
    domains = [f"domain {index}" for index in range(len(rows))]
    for _ in range(steps):
        direction = pipe.combine(rows, losses=losses, domains=domains, **shown(rows))
    return direction


def shown(rows):
    """For those that learn from features: one query per task, whose gradients are like the rows."""
    features = rows.detach()[:, None, :]
    return {"features": features, "feature_cotangents": features}


def claims(text, trait):
    name = text.split("(")[0]
    return trait in installed().load("homogenizers", name)[1].traits


def test_every_built_in_is_checked():
    checked = {text.split("(")[0] for text in METHODS}
    built_in = {i.name for i in installed().list("homogenizers") if i.distribution == "gradhomog"}
    assert built_in == checked


@pytest.mark.parametrize("text", METHODS)
@given(rows=jacobians(tasks=(1, 1), params=(1, 9)), tasks=st.integers(1, 6))
def test_identical_rows_give_that_row(text, rows, tasks):
    expected = rows[0]
    direction = combine(text, rows.repeat(tasks, 1), steps=2)
    torch.testing.assert_close(direction, expected, rtol=1e-9, atol=1e-12 * float(rows.abs().max()))


@pytest.mark.parametrize("text", METHODS)
@given(rows=jacobians())
def test_every_finite_input_has_a_finite_direction_of_its_shape_and_dtype(text, rows):
    for dtype in (torch.float64, torch.float32):
        direction = combine(text, rows.to(dtype), steps=2)
        assert direction.shape == rows.shape[1:]
        assert direction.dtype == dtype
        assert torch.isfinite(direction).all()


@pytest.mark.parametrize("text", METHODS)
@pytest.mark.parametrize("rows", [torch.zeros(3, 4), torch.zeros(1, 4)])
def test_no_gradient_at_all_gives_no_direction(text, rows):
    assert torch.equal(combine(text, rows), torch.zeros(4))


@pytest.mark.parametrize("text", [text for text in METHODS if claims(text, "scale_equivariant")])
@given(exponent=st.integers(-59, 59), seed=st.integers(0, 1000))  # 2^±59 = 10^±18
def test_a_common_factor_of_float32_rows_is_a_factor_of_the_direction(text, exponent, seed):
    rows = torch.randn(4, 50, generator=torch.Generator().manual_seed(seed))
    plain, scaled = combine(text, rows, steps=3), combine(text, rows * 2.0**exponent, steps=3)
    torch.testing.assert_close(scaled / 2.0**exponent, plain, rtol=1e-4, atol=1e-4 * float(rows.abs().max()))


@pytest.mark.parametrize("text", [text for text in METHODS if claims(text, "permutation_equivariant")])
@given(rows=jacobians(tasks=(2, 6), params=(7, 12), degenerate=False), seed=st.integers(0, 1000))
def test_the_order_of_the_tasks_does_not_matter(text, rows, seed):
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    losses = torch.linspace(0.5, 1.5, len(rows), dtype=torch.float64)
    plain = gradhomog.pipeline(text).combine(rows, losses=losses)
    permuted = gradhomog.pipeline(text).combine(rows[order], losses=losses[order])
    torch.testing.assert_close(permuted, plain, rtol=1e-6, atol=1e-9 * float(rows.norm(dim=1).min()))


@pytest.mark.parametrize("text", ["mgda"])
@given(rows=jacobians())
def test_the_direction_conflicts_with_no_task_where_that_is_claimed(text, rows):
    assert claims(text, "non_conflicting")
    direction = combine(text, rows)
    inner = rows @ direction
    # Rounding: of the combination, relative to the sizes of what is multiplied.
    assert (inner >= -1e-9 * rows.norm(dim=1) * rows.norm(dim=1).min()).all()


@pytest.mark.parametrize("text", [text for text in METHODS if claims(text, "differentiable")])
@pytest.mark.parametrize("tasks", [2, 4])
def test_the_direction_is_differentiable_in_rows_and_losses(text, tasks):
    generator = torch.Generator().manual_seed(7 * tasks)
    rows = torch.randn(tasks, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    losses = torch.rand(tasks, generator=generator, dtype=torch.float64).add(0.5).requires_grad_()
    domains = [f"domain {index}" for index in range(tasks)]

    def direction(jacobian, values):
        # A fresh pipeline: gradcheck calls many times, and the orders and weights must be those of the first step.
        return gradhomog.pipeline(text).combine(
            jacobian, losses=values, domains=domains, create_graph=True, **shown(jacobian)
        )

    assert torch.autograd.gradcheck(direction, (rows, losses))
    assert torch.autograd.gradgradcheck(direction, (rows, losses))


@pytest.mark.parametrize("text", METHODS)
# More parameters than tasks: with fewer, several sets of weights are shortest, and rounding chooses among them.
@given(rows=jacobians(tasks=(2, 5), params=(6, 12), degenerate=False), seed=st.integers(0, 100))
def test_a_rotation_of_parameter_space_rotates_the_direction(text, rows, seed):
    assume(rows.norm(dim=1).min() > 1e-6)
    square = torch.randn(
        rows.shape[1], rows.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    rotation = torch.linalg.qr(square)[0]
    plain = combine(text, rows)
    torch.testing.assert_close(
        combine(text, rows @ rotation), plain @ rotation, rtol=1e-6, atol=1e-8 * float(rows.norm(dim=1).max())
    )


@pytest.mark.parametrize("text", METHODS)
def test_the_same_seed_gives_the_same_directions(text):
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(combine(text, rows, steps=4), combine(text, rows, steps=4))


@pytest.mark.parametrize("text", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rows_give_the_direction_up_to_their_precision(text, dtype):
    rows = torch.randn(4, 33, generator=torch.Generator().manual_seed(1)).to(dtype)
    direction = combine(text, rows)
    assert direction.dtype == dtype
    torch.testing.assert_close(direction.double(), combine(text, rows.double()), rtol=1e-2, atol=1e-2)
