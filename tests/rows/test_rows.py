"""Rows: the Gramian, the norms and the direction against plain matrix algebra in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import gradhomog
from gradhomog import DataError
from gradhomog import rows as row_math
from gradhomog.bench.cost.memory import peak_bytes
from gradhomog.rows import products
from gradhomog.rows.products import BLOCK
from gradhomog.testing import jacobians


def as_dict(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same rows in three tensors, one of them a scalar parameter per task."""
    p = rows.shape[1]
    cut = p // 2
    parts = {"scalar": rows[:, 0], "middle": rows[:, 1 : 1 + cut], "end": rows[:, 1 + cut :].unsqueeze(1)}
    return {name: part for name, part in parts.items() if part.numel()}


@given(jacobians())
def test_gramian_and_norms_are_those_of_the_matrix_for_tensor_and_dict(rows):
    expected = rows @ rows.T
    for form in (rows, as_dict(rows)):
        gramian = row_math.block_gramians(form)[1].sum(0)
        squares = row_math.block_squared_norms(form)[1].sum(0)
        norms = expected.diagonal().sqrt()
        assert ((gramian - expected).abs() <= 1e-12 * norms[:, None] * norms).all()
        torch.testing.assert_close(squares, expected.diagonal(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 100, BLOCK, 3 * BLOCK + 17])
def test_narrow_rows_give_the_gramian_of_their_values(dtype, size):
    rows = torch.randn(5, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = rows.double() @ rows.double().T
    norms = exact.diagonal().sqrt()
    found = row_math.block_gramians(rows)[1].sum(0)
    # Sums of up to 8192 products in float32: rounding errors of squares of bfloat16 numbers do not average out.
    assert ((found - exact).abs() <= 1e-5 * norms[:, None] * norms).all()


@given(st.integers(-18, 18), st.integers(0, 1000))
def test_gramian_of_float32_rows_is_equivariant_under_a_common_factor(exponent, seed):
    rows = torch.randn(4, 300, generator=torch.Generator().manual_seed(seed))
    factor = 2.0 ** round(exponent * 3.3219)  # a power of two: the float32 rows themselves are scaled exactly
    plain = row_math.block_gramians(rows)[1].sum(0)
    scaled = row_math.block_gramians(rows * factor)[1].sum(0) / factor**2
    norms = plain.diagonal().sqrt()
    assert ((scaled - plain).abs() <= 2e-6 * norms[:, None] * norms).all()


def test_rows_of_very_different_size_do_not_underflow():
    rows = torch.tensor([[1e-25, 0.0], [1e-25, 1e15]])
    gramian = row_math.block_gramians(rows)[1].sum(0)
    exact = rows.double() @ rows.double().T
    torch.testing.assert_close(gramian, exact, rtol=1e-12, atol=0)


def test_mean_of_a_dict_is_the_mean_of_each_tensor():
    rows = {"a": torch.randn(3, 4, 2), "b": torch.randn(3)}
    torch.testing.assert_close(row_math.mean(rows), {name: value.mean(0) for name, value in rows.items()})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weighted_mean_keeps_dtype_and_shape(dtype):
    rows = {"a": torch.ones(3, 4, 2, dtype=dtype), "b": torch.ones(3, dtype=dtype)}
    direction = row_math.weighted_mean(rows, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert direction["a"].dtype == dtype
    assert direction["a"].shape == (4, 2)
    assert direction["b"].shape == ()
    assert float(direction["b"]) == 2.0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.ones(3), r"\[tasks, params\].*got \(3,\)"),
        (torch.ones(0, 3), "at least one task"),
        ({}, "first dimension"),
        ({"a": torch.ones(2, 3), "b": torch.ones(3, 3)}, "found tasks"),
        ({"a": torch.tensor(1.0)}, "first dimension"),
        (torch.ones(2, 3, dtype=torch.int64), "floating point"),
        ([[1.0, 2.0]], "got list"),
        ({"a": torch.ones(2, 3), "b": None}, "`b` is NoneType. Write zeros"),
    ],
)
def test_what_are_no_rows_is_refused_with_what_was_found(bad, message):
    with pytest.raises(DataError, match=message):
        row_math.blocks(bad)


# -- rows that are one in memory -------------------------------------------------------------------------------------


class Repeat(gradhomog.Homogenizer):
    """All rows become their sum, in the memory of one."""

    def rows(self, jacobian):
        return row_math.transform(jacobian, lambda value: value.sum(0).expand_as(value))


class Pick(gradhomog.Homogenizer):
    """All rows become the first of those given, in its own memory."""

    def rows(self, jacobian):
        return row_math.transform(jacobian, lambda value: value[:1].expand_as(value))


class Whole(gradhomog.Homogenizer):
    """Rows stay what they are."""

    def rows(self, jacobian):
        return jacobian


@given(jacobians(tasks=(2, 5)))
def test_rows_that_are_one_in_memory_have_the_statistics_of_their_copies(rows):
    repeated = {name: part[:1].expand_as(part) for name, part in as_dict(rows).items()}
    copies = {name: part.contiguous() for name, part in repeated.items()}
    weights = torch.linspace(-1, 2, len(rows), dtype=torch.float64)
    for statistic in (row_math.block_gramians, row_math.block_squared_norms):
        torch.testing.assert_close(statistic(repeated)[1], statistic(copies)[1], rtol=1e-12, atol=0)
    torch.testing.assert_close(row_math.mean(repeated), row_math.mean(copies), rtol=1e-12, atol=0)
    found, expected = (row_math.weighted_mean(each, weights) for each in (repeated, copies))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12 * float(rows.abs().max()))


def test_later_stages_act_on_rows_that_are_one_in_memory_and_on_rows_that_are_not():
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weighted = ("static", {"weights": [1, 2, 3]})
    for later in (weighted, "pcgrad", Repeat()):
        found = gradhomog.pipeline([Repeat(), later]).combine(rows)
        factor = 3 if isinstance(later, Repeat) else 1
        torch.testing.assert_close(found, factor * rows.sum(0))

    class Double(gradhomog.Homogenizer):
        def rows(self, jacobian):
            return 2 * jacobian

    expected = (2 * rows * torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)[:, None]).mean(0)
    torch.testing.assert_close(gradhomog.pipeline([Double(), weighted]).combine(rows), expected)


def test_a_row_that_all_have_become_is_the_direction_itself_and_no_copy():
    memory = []

    class Keep(Repeat):
        def rows(self, jacobian):
            memory.append(jacobian.sum(0))
            return memory[0].expand_as(jacobian)

    direction = gradhomog.pipeline([Keep()]).combine(torch.ones(3, 5))
    assert direction.data_ptr() == memory[0].data_ptr()


def test_a_direction_never_lies_in_the_memory_of_the_rows_given():
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    for shown in (rows, rows[:1].clone().expand(3, 5), {"a": rows[:, :2], "b": rows[:, 2]}):
        before = row_math.transform(shown, torch.clone)
        for homogenizers in ("none", [Pick()], [Whole()]):
            direction = gradhomog.pipeline(homogenizers).combine(shown)
            row_math.transform(direction, torch.Tensor.zero_)
            torch.testing.assert_close(row_math.transform(shown, torch.clone), before, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_finite_numbers_whose_sum_is_not_are_finite(dtype):
    rows = torch.full((2, 4), 0.9 * torch.finfo(dtype).max, dtype=dtype)
    assert row_math.all_finite(rows)
    assert row_math.all_finite({"a": rows, "b": rows[:1].expand(3, 4)})
    for bad in (torch.nan, torch.inf, -torch.inf):
        rows[1, 2] = bad
        assert not row_math.all_finite(rows)
        assert not row_math.all_finite(rows[1:].expand(3, 4))
    assert not row_math.all_finite(torch.tensor([[torch.inf, -torch.inf]]))


def test_a_stage_that_returns_nan_is_told_where_all_its_rows_are_one_in_memory():
    class Broken(gradhomog.Homogenizer):
        def rows(self, jacobian):
            return torch.full_like(jacobian[0], torch.nan).expand_as(jacobian)

    with pytest.raises(gradhomog.PluginRunError, match="returned NaN or infinity from `rows`"):
        gradhomog.pipeline([Broken()]).combine(torch.ones(3, 2))


def test_through_rows_that_are_one_in_memory_derivatives_flow():
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    pipe = gradhomog.pipeline("graddrop(sharpness=1e9)")
    (slope,) = torch.autograd.grad(pipe.combine(rows, create_graph=True).sum(), rows)
    torch.testing.assert_close(slope, (rows.sign() == rows.sum(0).sign()).double() / 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("method", ["none", "mgda", "gradnorm", "graddrop"])
def test_a_step_allocates_one_gradient_and_a_fixed_amount(dtype, method):
    pipe, rows, losses = gradhomog.pipeline(method), torch.randn(8, 2_000_000).to(dtype), torch.ones(8)
    pipe.combine(rows, losses)
    assert peak_bytes(lambda: pipe.combine(rows, losses)) < 2 * rows[0].nbytes + 2**23


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rows_of_any_size_have_the_statistics_of_their_numbers(dtype):
    rows = torch.randn(3, 700_001, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = rows.double()
    torch.testing.assert_close(products.gramian(rows), exact @ exact.T, rtol=1e-5, atol=1e-5 * 700_001)
    expected = (torch.tensor([0.5, 0.25, 2.0]).double() @ exact / 3).to(dtype)
    found = row_math.weighted_mean(rows, torch.tensor([0.5, 0.25, 2.0], dtype=torch.float64))
    torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("tasks", [1, 2, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("params", [8191, 8192, 100_000, 2**18, 300_007])
def test_the_gramian_is_that_of_float64_however_its_columns_are_cut(tasks, params):
    rows = torch.randn(tasks, params, generator=torch.Generator().manual_seed(tasks))
    exact = rows.double() @ rows.double().T
    lengths = exact.diagonal().sqrt()
    difference = (products.gramian(rows) - exact) / torch.outer(lengths, lengths)
    assert float(difference.abs().max()) < 1e-6


@pytest.mark.parametrize("made", [lambda rows: rows, lambda rows: {"w": rows, "b": rows[:, 0]}], ids=["tensor", "dict"])
def test_rows_whose_sum_overflows_are_finite_and_infinite_ones_are_not(made):
    rows = torch.full((3, 5), 3e38)
    assert row_math.finite_tasks(made(rows)) == [True, True, True]
    assert row_math.all_finite(made(rows))
    rows[1, 0] = -torch.inf
    assert row_math.finite_tasks(made(rows)) == [True, False, True]
    assert not row_math.all_finite(made(rows))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_expanded_rows_of_half_precision_are_read_once(dtype):
    rows = torch.randn(3_000_000).to(dtype).expand(8, -1)
    assert row_math.finite_tasks(rows) == [True] * 8
    assert peak_bytes(lambda: row_math.finite_tasks(rows)) < 2**23


def test_a_gramian_under_a_compilers_stand_ins_leaves_nothing_behind():
    with FakeTensorMode() as mode:
        products.gramian(mode.from_tensor(torch.zeros(6, 2**18)))
    rows = torch.randn(6, 2**18 + 7)
    found = products.gramian(rows)
    assert type(found) is torch.Tensor
    torch.testing.assert_close(found, rows.double() @ rows.double().T, rtol=1e-5, atol=1.0)


def test_roots_have_derivatives_of_zero_at_zero_and_leave_nan_alone():
    values = torch.tensor([4.0, 0.0, -1e-20, torch.nan])
    for root in (row_math.safe_sqrt(values), row_math.safe_sqrt(values.clone().requires_grad_()).detach()):
        torch.testing.assert_close(root, torch.tensor([2.0, 0.0, 0.0, torch.nan]), equal_nan=True)
    squares = torch.tensor([4.0, 0.0], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(row_math.safe_sqrt(squares).sum(), squares, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), squares)
    assert first.tolist() == [0.25, 0.0]
    assert second.tolist() == [-1 / 32, 0.0]
