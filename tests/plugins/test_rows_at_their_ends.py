"""Rows of all methods: dependent up to rounding, very long or short, without parameters, averaged over steps."""

import itertools
import math

import pytest
import torch

import gradhomog
from gradhomog.registry import installed
from gradhomog.testing.snapshots import find_objects
from tests.plugins.rows import BUILT_IN, normal

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.slow_after_first
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "method",
    [
        "upgrad", "dualproj", "dcgd", "dcgd(variant='average')", "cagrad", "cagrad(c=0.9)", "mgda", "sdmgrad",
        "nash_mtl", "fairgrad", "config", "imtl_g", "aligned_mtl", "aligned_mtl(scale_mode='median')", "pcd(tau=0)",
        "krum", "pcgrad",
    ],
)  # fmt: skip
def test_dependent_rows_have_the_direction_of_float64_rows_in_every_precision(method, dtype):
    # Rows of bfloat16 that are dependent up to rounding counted as independent: directions of another kind.
    tolerance = {torch.float32: 1e-4, torch.float16: 1.5e-2, torch.bfloat16: 2e-2}[dtype]
    for seed in range(24):
        rows = normal(3, 40, seed=seed)
        rows[2] = (0.3 if seed % 2 else -0.3) * rows[0] + (seed % 3) * rows[1]
        expected = gradhomog.pipeline(method).combine(rows)
        found = gradhomog.pipeline(method).combine(rows.to(dtype)).double()
        assert float((found - expected).norm()) < tolerance * float(rows.norm(dim=1).mean()), seed


@pytest.mark.slow_after_first
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("method", ["upgrad", "dualproj", "mgda", "cagrad", "cagrad(c=0.9)", "sdmgrad"])
def test_solvers_converge_if_rows_add_up_to_zero(method, dtype):
    # ConvergenceWarnings are errors here. Half of CAGrad's steps issued one, because a ball around zero has no radius.
    for seed in range(40):
        rows = normal(3 + seed % 6, (5, 100, 1000)[seed % 3], seed=seed)
        rows[-1] = -rows[:-1].sum(0)
        direction = gradhomog.pipeline(method).combine(rows.to(dtype))
        assert float(direction.norm()) < 2 * torch.finfo(dtype).eps ** 0.5 * float(rows.norm(dim=1).mean())


@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e18])
@pytest.mark.parametrize(
    "method",
    [
        "imtl_g", "aligned_mtl", "aligned_mtl(scale_mode='median')", "aligned_mtl(scale_mode='rmse')", "config", "dcgd",
        "dcgd(variant='projection')", "dcgd(variant='average')", "dualproj", "fairgrad", "graddrop",
        "gradvac(order='fixed')", "nash_mtl", "pcgrad(order='fixed')", "upgrad",
    ],
)  # fmt: skip
def test_zero_rows_change_the_number_of_rows_only(method, scale):
    rows = normal(3, 5, seed=0)
    rows[1] = 0.3 * rows[1] - 2 * rows[0]
    more = torch.cat([rows, torch.zeros(2, 5)])[[0, 3, 1, 4, 2]]
    expected = gradhomog.pipeline(method).combine(rows) * (1 if method == "imtl_g" else 3 / 5)
    torch.testing.assert_close(gradhomog.pipeline(method).combine(scale * more) / scale, expected)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize(
    "method",
    [
        "and_mask", "and_mask(rescale=true)", "config", "dcgd", "dcgd(variant='projection')",
        "dcgd(variant='average')", "dualproj", "fairgrad", "fairgrad(scale='paper')", "gradvac", "imtl_g", "mgda",
        "nash_mtl", "nash_mtl(scale='paper')", "pcd(tau=0)", "pcgrad", "sand_mask", "sand_mask(rescale=true)",
        "sdmgrad", "upgrad",
    ],
)  # fmt: skip
def test_opposite_rows_give_zero(method, dtype):
    row = normal(1, 1000, seed=1)[0]
    rows = torch.stack([row, -2 * row]).to(dtype)
    # Fused multiply-add leaves the rounding error of one product; without it, the direction is exactly zero.
    relative = float(gradhomog.pipeline(method).combine(rows).double().norm() / row.norm())
    assert relative <= max(torch.finfo(dtype).eps, 1e-12)


def one_step(pipe, rows, losses):
    """Return the direction of one step with all inputs that any method reads; `tracked` chooses its tasks."""
    chosen = list(pipe.choose(len(rows)))
    rows = rows[chosen]
    features = [rows[:, None]] * (1 + len(pipe.requirements.transforming))
    return pipe.homogenize(
        rows, losses[chosen], slots=chosen, features=features, feature_grads=features,
        kernel_traces=torch.arange(1.0, 1 + len(rows)),
    ).direction[""]  # fmt: skip


FOUR_LOSSES = torch.tensor([0.5, 0.8, 1.2, 1.5], dtype=torch.float64)


@pytest.mark.slow_after_first
@pytest.mark.parametrize(
    "method", [*BUILT_IN, "cagrad(c=0.9)", "dcgd(variant='average')", "mgda(normalize='l2')", "mgda(on='features')"]
)
def test_a_common_factor_of_float64_rows_multiplies_the_direction(method):
    # CAGrad at 1e-120 was 5e19 times too long.
    rows = normal(4, 9, seed=0)
    rows[2] -= rows[0]
    plain = gradhomog.pipeline(method)
    expected = [one_step(plain, rows, FOUR_LOSSES) for _ in range(3)]
    for exponent in (-460, -400, 400, 498):  # 1e-138 to 1e150
        pipe = gradhomog.pipeline(method)
        found = [one_step(pipe, rows * 2.0**exponent, FOUR_LOSSES) / 2.0**exponent for _ in range(3)]
        size = float(torch.stack(expected).norm())
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 * size, msg=f"times 2^{exponent}")


EXTREMES = {
    "rows of 1e300": (1e300, 1.0), "rows of 1e200": (1e200, 1.0), "rows of 1e-200": (1e-200, 1.0),
    "losses of 1e-40": (1.0, 1e-40), "losses of 1e-300": (1.0, 1e-300), "losses of 1e300": (1.0, 1e300),
    "one loss of 1e-40": (1.0, torch.tensor([1e-40, 1.0, 1.0, 1.0], dtype=torch.float64)),
}  # fmt: skip


@pytest.mark.slow_after_first
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", [*BUILT_IN, "tracked(method='config')"])
def test_one_extreme_step_raises_and_changes_nothing_or_leaves_a_usable_state(method, dtype):
    # Rows of 1e300: errors claimed that 18 methods returned NaN.
    # `tracked` after rows of 1e200, `db_mtl` after a loss of 1e-40, `ldc_mtl` after 1e-300 refused every later step.
    rows = normal(4, 9, seed=0)
    for what, (of_rows, of_losses) in EXTREMES.items():
        if dtype == torch.float32 and of_rows != 1:
            continue
        for ordinary_steps in (0, 2):
            pipe, other = gradhomog.pipeline(method), gradhomog.pipeline(method)
            for each in (pipe, other):
                for _ in range(ordinary_steps):
                    one_step(each, rows.to(dtype), FOUR_LOSSES)
            message = ""
            try:
                one_step(pipe, (rows * of_rows).to(dtype), FOUR_LOSSES * of_losses)
            except gradhomog.GradhomogError as error:
                message = str(error)
                expected = one_step(other, rows.to(dtype), FOUR_LOSSES)
                assert torch.equal(one_step(pipe, rows.to(dtype), FOUR_LOSSES), expected), what
            if message and of_rows > 1 and method != "rotograd":  # whose features have this size, too
                assert "overflow" in message or "exceeds" in message, message
            for _ in range(5):
                assert bool(one_step(pipe, rows.to(dtype), FOUR_LOSSES).isfinite().all()), what


OVERFLOWING = {
    torch.float64: (1e150, 1e154, 1e200, 5e307), torch.float32: (1e18, 1e30, 1e38, 3e38), torch.float16: (3e4, 6.4e4),
    torch.bfloat16: (1e38, 3e38),
}  # fmt: skip


@pytest.mark.parametrize(
    "method",
    [*BUILT_IN, "aligned_mtl(scale='paper')", "config(scale='paper')", "metabalance(relax=1)",
     "tracked(method='graddrop', rows='all')"],
)  # fmt: skip
def test_an_overflow_is_the_fault_of_the_rows_not_of_the_method(method):
    # 300 errors named the authors of the method for an overflow of rows near the largest number.
    unit = normal(4, 9)
    one_entry = torch.zeros(4, 9, dtype=torch.float64)
    one_entry[:, 0], one_entry[1, 0], one_entry[2, 1] = 1.0, -1.0, 1.0
    for dtype, sizes in OVERFLOWING.items():
        for size, rows in itertools.product(sizes, (unit / unit.abs().max(), unit.sign(), one_entry)):
            pipe, message, finite = gradhomog.pipeline(method), "", True
            try:
                finite = bool(one_step(pipe, (size * rows).to(dtype), FOUR_LOSSES).isfinite().all())
            except gradhomog.GradhomogError as error:
                message = str(error)
            assert finite
            assert pipe.steps == (0 if message else 1)
            assert not message or dtype != torch.float32 or size > 1e18, (size, message)
            assert not message or any(word in message for word in ("too large", "overflow", "exceeds")), message
            assert "Report it" not in message, (dtype, size, message)


AVERAGES = ["db_mtl", "excess_mtl", "metabalance", "moco(gamma=0)", "multiadam", "tracked(method='static', rows='all')"]
SIZES = torch.tensor([[1.0], [30.0], [0.1]], dtype=torch.float64)
LOSSES = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
ON_ROWS = [
    name for name in BUILT_IN
    if name not in ("tracked", "ntk") and not installed().load("homogenizers", name)[1].needs & {"features"}
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        *((method, {"a": normal(3, 2), "b": normal(3, 2, 2)}) for method in AVERAGES),
        *((method, normal(3, 6)) for method in AVERAGES if method != "metabalance"),  # which averages norms
    ],
)
def test_rows_of_other_names_or_shapes_restart_the_averages(method, rows):
    pipe = gradhomog.pipeline(method)
    pipe.combine(SIZES * normal(3, 4, seed=3), LOSSES)
    torch.testing.assert_close(pipe.combine(rows, LOSSES), gradhomog.pipeline(method).combine(rows, LOSSES))


@pytest.mark.parametrize("method", AVERAGES)
def test_a_direction_overwritten_by_the_caller_changes_no_average(method):
    pipe, other = gradhomog.pipeline(method), gradhomog.pipeline(method)
    for seed in range(3):
        rows = normal(3, 6, seed=seed)
        found = pipe.combine(rows, LOSSES)
        assert torch.equal(found, other.combine(rows, LOSSES))
        found.zero_()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["db_mtl(beta=0.999, log=false)", "moco(beta=0.001, beta_decay=0)", AVERAGES[-1]])
def test_half_precision_rows_are_averaged_in_float32(method, dtype):
    # An average in bfloat16 stops moving at once: one thousandth is below its rounding.
    pipe, exact = gradhomog.pipeline(method), gradhomog.pipeline(method)
    for step in range(20):
        rows = (1 + 0.1 * step + 0.1 * normal(3, 40, seed=step)).to(dtype)
        found = pipe.combine(rows)
        expected = exact.combine(rows.double())
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=1e-2)
    averages = find_objects(pipe.state_dict(), torch.Tensor)
    assert {average.dtype for _, average in averages} - {torch.float64} == {torch.float32}  # Gramians in float64


@pytest.mark.parametrize("method", ON_ROWS)
def test_float32_rows_have_the_direction_of_the_same_rows_in_float64(method):
    exact, single = gradhomog.pipeline(method), gradhomog.pipeline(method)
    for seed in range(4):
        rows = (SIZES * (normal(3, 300, seed=seed) + 0.3)).float()
        expected, found = exact.combine(rows.double(), LOSSES), single.combine(rows, LOSSES)
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def rows_of_angle(tasks, degrees, params=300, seed=0):
    """Return float32 rows of norms from 1 to 10 with equal angles between them."""
    basis = torch.linalg.qr(normal(params, tasks + 1, seed=seed))[0].T
    spread = (1 / math.cos(math.radians(degrees)) - 1) ** 0.5
    return (torch.logspace(0, 1, tasks, dtype=torch.float64)[:, None] * (basis[0] + spread * basis[1:])).float()


@pytest.mark.parametrize("method", [*ON_ROWS, "mgda(normalize='l2')", "aligned_mtl(scale_mode='rmse')"])
def test_float32_rows_at_small_angles_have_the_direction_of_the_same_rows_in_float64(method):
    # For 1 degree `config` was 6e-6 off, `imtl_g` 3e-4, `aligned_mtl` 4e-4; products in float32 were divided by θ²/2.
    for tasks, degrees in [(2, 0.15), *itertools.product((2, 3, 5), (0.3, 1, 3, 10))]:
        rows = rows_of_angle(tasks, degrees)
        losses = torch.linspace(0.5, 2, tasks, dtype=torch.float64)
        expected, found = (gradhomog.pipeline(method).combine(each, losses) for each in (rows.double(), rows))
        error = float((found.double() - expected).norm() / expected.norm())
        limit = 1e-6 / math.radians(degrees) ** 2 if "l2" in method else 5e-5  # a ridge of 1e-7, over the eigenvalue
        assert error < limit, (tasks, degrees, error)


@pytest.mark.parametrize("method", ON_ROWS)
def test_rows_without_parameters_have_a_direction_without_parameters(method):
    pipe = gradhomog.pipeline(method)
    for _ in range(3):
        assert pipe.combine(torch.zeros(3, 0), LOSSES).shape == (0,)


OF_GRAMIAN = [name for name in BUILT_IN if "gramian" in gradhomog.pipeline(name).requirements.in_every_step]


@pytest.mark.parametrize("name", OF_GRAMIAN)
def test_inner_products_that_overflow_are_an_error_and_not_the_mean(name):
    rows = 1e160 * torch.tensor([[3.0, 0, 1], [-1, 1, 0], [-1, -2, 0.5]], dtype=torch.float64)
    with pytest.raises(gradhomog.NonfiniteError, match=r"rows are too large.* largest entry of a row is 3\.0e\+160"):
        gradhomog.pipeline(name).combine(rows, torch.ones(3))
