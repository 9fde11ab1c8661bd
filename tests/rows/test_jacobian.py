"""Jacobians: Gramian, norms and directions compared with matrix algebra in float64, for every form of the rows."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog import DataError, OptionError, as_jacobian
from gradhomog.experiments.profiling.harness import peak_bytes
from gradhomog.rows import jacobian_of_rows
from gradhomog.rows.arithmetic import CHUNK_COLUMNS
from gradhomog.testing import jacobians
from tests.step.members import Doubled


def as_dict(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the same rows in up to three tensors, one of them a scalar parameter per task."""
    p = rows.shape[1]
    cut = p // 2
    parts = {"scalar": rows[:, 0], "middle": rows[:, 1 : 1 + cut], "end": rows[:, 1 + cut :].unsqueeze(1)}
    return {name: part for name, part in parts.items() if part.numel()}


def matrix(jacobian):
    """Return all rows, `[tasks, params]`."""
    return torch.cat([block.reshape(jacobian.tasks, -1) for block in jacobian.materialize().values()], dim=1)


@given(jacobians())
def test_gramian_and_norms_are_those_of_the_matrix_for_tensor_and_dict(rows):
    expected = rows @ rows.T
    norms = expected.diagonal().sqrt()
    for form in (rows, as_dict(rows)):
        jacobian = as_jacobian(form)
        assert ((jacobian.gramian() - expected).abs() <= 1e-12 * norms[:, None] * norms).all()
        torch.testing.assert_close(as_jacobian(form).squared_norms(), norms.square(), rtol=1e-12, atol=0)
        torch.testing.assert_close(as_jacobian(form).norms(), norms, rtol=1e-12, atol=0)


@given(jacobians(params=(3, 12)))
def test_a_pattern_selects_blocks(rows):
    jacobian = as_jacobian({"encoder.a": rows[:, :2], "encoder.b": rows[:, 2:], "head": torch.ones(len(rows), 1)})
    tolerance = {"rtol": 1e-12, "atol": 1e-12 * float(rows.square().sum())}
    torch.testing.assert_close(jacobian.gramian("encoder.*"), rows @ rows.T, **tolerance)
    torch.testing.assert_close(jacobian.squared_norms("encoder.*"), rows.square().sum(1), **tolerance)
    assert jacobian.norms("head").tolist() == [1.0] * len(rows)
    torch.testing.assert_close(jacobian.gramian(), jacobian.gramian("encoder.*") + 1, **tolerance)
    with pytest.raises(OptionError, match=r"'tail' matches none of: encoder.a, encoder.b, head"):
        jacobian.gramian("tail")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 100, CHUNK_COLUMNS, 3 * CHUNK_COLUMNS + 17])
def test_rows_of_narrow_dtypes_have_the_gramian_of_their_values(dtype, size):
    rows = torch.randn(5, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    exact = rows.double() @ rows.double().T
    norms = exact.diagonal().sqrt()
    # Sums of up to 8192 products in float32: rounding errors of squares of bfloat16 numbers do not average out.
    assert ((as_jacobian(rows).gramian() - exact).abs() <= 1e-5 * norms[:, None] * norms).all()


def test_rows_of_very_different_size_do_not_underflow():
    rows = torch.tensor([[1e-25, 0.0], [1e-25, 1e15]])
    exact = rows.double() @ rows.double().T
    torch.testing.assert_close(as_jacobian(rows).gramian(), exact, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_weighted_mean_keeps_dtype_and_shape(dtype):
    rows = as_jacobian({"a": torch.ones(3, 4, 2, dtype=dtype), "b": torch.ones(3, dtype=dtype)})
    direction = rows.weighted_mean(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert direction["a"].dtype == dtype
    assert direction["a"].shape == (4, 2)
    assert direction["b"].shape == ()
    assert float(direction["b"]) == 2.0
    assert float(rows.mean()["b"]) == 1.0


def test_dtype_is_the_narrowest_and_device_and_names_are_those_of_the_blocks():
    jacobian = as_jacobian({"a": torch.ones(2, 3), "b": torch.ones(2, dtype=torch.float16)})
    assert (jacobian.dtype, jacobian.device.type, jacobian.names) == (torch.float16, "cpu", ("a", "b"))
    assert as_jacobian(torch.ones(2, 3)).names == ("",)
    assert as_jacobian(jacobian) is jacobian


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.ones(3), r"\[tasks, params\].*got \(3,\)"),
        (torch.ones(0, 3), "at least one task"),
        ({}, "first dimension"),
        ({"a": torch.ones(2, 3), "b": torch.ones(3, 3)}, "got sizes"),
        (torch.ones(2, 3, dtype=torch.int64), "floating-point dtype of 16 bits or more; got torch.int64"),
        (torch.ones(2, 3).to(torch.float8_e4m3fn), r"got torch.float8_e4m3fn. Convert .* \.to\(torch\.bfloat16\)"),
        ([[1.0, 2.0]], "got list"),
        ({"a": torch.ones(2, 3), "b": None}, "got NoneType for `b`. Use zeros"),
        ({"a": torch.ones(2, 3), "b": torch.ones(2, 3, device="meta")}, "got a tensor on the device meta for `b`"),
        (torch.eye(2).to_sparse(), r"dense.*got layout torch.sparse_coo. Use to_dense"),
    ],
)
def test_invalid_rows_raise_with_the_name_and_the_reason(bad, message):
    with pytest.raises(DataError, match=message):
        as_jacobian(bad)


# -- mixtures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (4, 4)], ids=["weights", "matrix"])
@given(rows=jacobians(tasks=4, params=(3, 8)), seed=st.integers(0, 100))
def test_a_mixture_has_the_statistics_of_the_mixed_rows(shape, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    mixing, later = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    weights = torch.randn(4, generator=generator, dtype=torch.float64)
    c, d = ((torch.diag(value) if value.dim() == 1 else value) for value in (mixing, later))
    source = as_jacobian(as_dict(rows))
    for mixed, expected in (
        (source.mix(mixing), c @ rows),
        (source.mix(mixing).mix(later), d @ c @ rows),
        (source.mix(mixing).mix(later.flatten()[:4]), later.flatten()[:4, None] * (c @ rows)),
    ):
        size = float(expected.abs().max()) + float(rows.abs().max())
        close = {"rtol": 1e-9, "atol": 1e-9 * size**2 + 1e-300}
        torch.testing.assert_close(mixed.gramian(), expected @ expected.T, **close)
        torch.testing.assert_close(mixed.squared_norms(), expected.square().sum(1), **close)
        torch.testing.assert_close(matrix(mixed), expected, rtol=1e-9, atol=1e-9 * size)
        direction = torch.cat([value.flatten() for value in mixed.weighted_mean(weights).values()])
        torch.testing.assert_close(direction, weights @ expected / 4, rtol=1e-9, atol=1e-9 * size)
        plain = torch.cat([value.flatten() for value in mixed.mean().values()])
        torch.testing.assert_close(plain, expected.mean(0), rtol=1e-9, atol=1e-9 * size)
        assert torch.equal(matrix(mixed.select([2, 0])), matrix(mixed)[[2, 0]])
        assert mixed.source is source


def test_select_map_replace_and_detach_are_those_of_the_rows():
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    jacobian = as_jacobian(as_dict(rows))
    assert torch.equal(matrix(jacobian.select([2, 0])), rows[[2, 0]])
    assert torch.equal(matrix(jacobian.map(lambda block: 2 * block)), 2 * rows)
    assert torch.equal(matrix(jacobian.replace(as_dict(-rows))), -rows)
    for made in (jacobian, jacobian.mix(torch.ones(3)), jacobian.repeat(jacobian.mean())):
        assert matrix(made).requires_grad
        assert not matrix(made.detach()).requires_grad
        assert torch.equal(matrix(made.detach()), matrix(made).detach())
        shapes = {name: (row.shape, row.dtype) for name, row in made.row_like().items()}
        assert shapes == {name: (block.shape[1:], block.dtype) for name, block in made.materialize().items()}


# -- equal rows that share memory ------------------------------------------------------------------------------------


class Sum(gradhomog.Homogenizer):
    """Replaces all rows by their sum, stored once."""

    def rows(self, step):
        return step.jacobian.repeat(step.jacobian.weighted_mean(torch.full((step.tasks,), float(step.tasks))))


class First(gradhomog.Homogenizer):
    """Replaces all rows by the first row, in the same memory."""

    def rows(self, step):
        return step.jacobian.map(lambda block: block[:1].expand_as(block))


class Identity(gradhomog.Homogenizer):
    def rows(self, step):
        return step.jacobian


@given(jacobians(tasks=(1, 1), params=(3, 8)), st.integers(1, 5))
def test_equal_rows_have_the_statistics_of_their_copies(row, tasks):
    direction = {name: part[0] for name, part in as_dict(row).items()}
    repeated = as_jacobian(as_dict(torch.ones(tasks, row.shape[1]))).repeat(direction)
    copies = as_jacobian({name: part.expand(tasks, *part.shape[1:]).clone() for name, part in as_dict(row).items()})
    assert repeated.rows.tasks == 1
    close = {"rtol": 1e-9, "atol": 1e-12 * float(row.abs().max())}
    torch.testing.assert_close(repeated.gramian(), copies.gramian(), rtol=1e-12, atol=0)
    torch.testing.assert_close(repeated.squared_norms(), copies.squared_norms(), rtol=1e-12, atol=0)
    torch.testing.assert_close(repeated.mean(), copies.mean(), **close)
    weights = torch.linspace(-1, 2, tasks, dtype=torch.float64)
    torch.testing.assert_close(repeated.weighted_mean(weights), copies.weighted_mean(weights), **close)
    assert torch.equal(matrix(repeated), matrix(copies))
    assert repeated.select([0]).tasks == 1
    assert repeated.finite_tasks() == [True] * tasks


def test_later_stages_act_on_repeated_rows_and_on_separate_rows():
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weighted = ("static", {"weights": [1, 2, 3]})
    for later, factor in ((weighted, 1), ("mgda", 1), (Sum(), 3)):
        found = gradhomog.pipeline([Sum(), later]).combine(rows)
        torch.testing.assert_close(found, factor * rows.sum(0))
    expected = (2 * rows * torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64)[:, None]).mean(0)
    torch.testing.assert_close(gradhomog.pipeline([Doubled(), weighted]).combine(rows), expected)


def test_a_repeated_row_is_the_direction_without_a_copy():
    memory = []

    class Keep(gradhomog.Homogenizer):
        def rows(self, step):
            memory.append(step.jacobian.mean())
            return step.jacobian.repeat(memory[0])

    direction = gradhomog.pipeline([Keep()]).combine(torch.ones(3, 5))
    assert direction.data_ptr() == memory[0][""].data_ptr()


def test_a_direction_never_shares_memory_with_the_input():
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    for input_rows in ({"": rows}, {"": rows[:1].clone().expand(3, 5)}, {"a": rows[:, :2], "b": rows[:, 2]}):
        before = {name: block.clone() for name, block in input_rows.items()}
        for homogenizers in ("none", [First()], [Identity()], [Sum()]):
            for block in gradhomog.pipeline(homogenizers).combine(input_rows).values():
                block.zero_()
            torch.testing.assert_close(dict(input_rows), before, rtol=0, atol=0)


def test_a_stage_that_returns_nan_in_repeated_rows_is_named():
    class Broken(gradhomog.Homogenizer):
        def rows(self, step):
            return step.jacobian.repeat({"": torch.full((2,), torch.nan)})

    with pytest.raises(gradhomog.PluginRunError, match="returned NaN or infinity from `rows`"):
        gradhomog.pipeline([Broken()]).combine(torch.ones(3, 2))


def test_repeated_rows_are_differentiable():
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    pipe = gradhomog.pipeline("graddrop(sharpness=1e9)")
    (gradient,) = torch.autograd.grad(pipe.combine(rows, create_graph=True).sum(), rows)
    torch.testing.assert_close(gradient, (rows.sign() == rows.sum(0).sign()).double() / 3)


# -- finiteness and memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [lambda rows: rows, lambda rows: {"w": rows, "b": rows[:, 0]}], ids=["tensor", "dict"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_whose_sum_overflows_are_finite_and_infinite_ones_are_not(made, dtype):
    rows = torch.full((3, 5), 0.9 * torch.finfo(dtype).max, dtype=dtype)
    assert as_jacobian(made(rows)).finite_tasks() == [True, True, True]
    for bad in (torch.nan, torch.inf, -torch.inf):
        rows[1, 0] = bad
        jacobian = as_jacobian(made(rows))
        assert jacobian.finite_tasks() == [True, False, True]
        assert jacobian.select([0, 2]).finite_tasks() == [True, True]
        one = {name: block[1] for name, block in jacobian.materialize().items()}
        assert jacobian.repeat(one).finite_tasks() == [False] * 3
    assert as_jacobian(torch.tensor([[torch.inf, -torch.inf]])).finite_tasks() == [False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("method", ["none", "mgda", "gradnorm", "graddrop"])
def test_a_step_allocates_one_gradient_and_a_fixed_amount(dtype, method):
    pipe, rows, losses = gradhomog.pipeline(method), torch.zeros(8, 2_000_000, dtype=dtype), torch.ones(8)
    rows.fill_diagonal_(1)
    assert peak_bytes(lambda: pipe.combine(rows, losses)) < 2 * rows[0].nbytes + 2**23


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_expanded_rows_of_half_precision_are_read_once(dtype):
    jacobian = as_jacobian(torch.ones(3_000_000, dtype=dtype).expand(8, -1))
    assert jacobian.finite_tasks() == [True] * 8
    assert peak_bytes(jacobian.finite_tasks) < 2**23


def test_the_safe_square_root_has_derivative_zero_at_zero_and_keeps_nan():
    values = torch.tensor([4.0, 0.0, -1e-20, torch.nan])
    for root in (gradhomog.safe_sqrt(values), gradhomog.safe_sqrt(values.clone().requires_grad_()).detach()):
        torch.testing.assert_close(root, torch.tensor([2.0, 0.0, 0.0, torch.nan]), equal_nan=True)
    squares = torch.tensor([4.0, 0.0], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(gradhomog.safe_sqrt(squares).sum(), squares, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), squares)
    assert first.tolist() == [0.25, 0.0]
    assert second.tolist() == [-1 / 32, 0.0]


def test_a_statistic_that_was_first_read_with_disabled_gradients_has_a_graph():
    x = torch.tensor([[3.0, 0.0], [1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    read, unread = as_jacobian(x), as_jacobian(x)
    with torch.no_grad():
        read.gramian()
    found = [
        torch.autograd.grad(gradhomog.pipeline("mgda").combine({"": x}, create_graph=True)[""].sum(), x)[0],
        *(
            torch.autograd.grad(gradhomog.pipeline("mgda").combine(rows, create_graph=True)[""].sum(), x)[0]
            for rows in (read, unread)
        ),
    ]
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_weights_do_not_spread_nan_to_other_rows():
    rows = as_jacobian(torch.tensor([[torch.nan, 1.0], [1.0, 1.0]])).mix(torch.tensor([1.0, 2.0]))
    assert rows.finite_tasks() == [False, True]


def test_modifying_the_gramian_of_a_result_does_not_change_the_statistics_of_the_rows():
    rows = as_jacobian(torch.eye(2))
    gradhomog.pipeline("pcgrad").homogenize(rows).gramian.mul_(5)
    torch.testing.assert_close(rows.gramian(), torch.eye(2).double())


def test_mixing_of_another_shape_raises():
    with pytest.raises(DataError, match=r"`mixing` must have shape \[2\] or \[2, 2\]; got \(3,\)"):
        as_jacobian(torch.eye(2)).mix(torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_exact_gramian_is_that_of_the_same_rows_in_float64(dtype):
    rows = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    mixing = torch.tensor([[1.0, -1.0, 0.0], [0.5, 2.0, 0.0], [0.0, 0.1, 1.0]], dtype=torch.float64)
    dense, apart = as_jacobian({"a": rows[:, :7], "b": rows[:, 7:]}), jacobian_of_rows([{"a": row} for row in rows])
    expected, limit = rows.double() @ rows.double().T, {"rtol": 0, "atol": 1e-10}
    for one in (dense, apart):
        torch.testing.assert_close(one.exact_gramian, expected, **limit)
        torch.testing.assert_close(one.mix(mixing).exact_gramian, mixing @ expected @ mixing.T, **limit)
        torch.testing.assert_close(one.mix(mixing[0]).exact_gramian, mixing[0][:, None] * expected * mixing[0], **limit)
        assert not torch.allclose(one.gramian(), expected, **limit)
