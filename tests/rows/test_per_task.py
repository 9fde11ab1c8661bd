"""Gradients in separate tensors have the statistics of the same rows in one tensor, without large copies."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gradhomog import as_jacobian
from gradhomog.rows import Jacobian, PerTaskRows, all_finite
from gradhomog.rows.arithmetic import SMALL_TENSOR, STACKED
from gradhomog.rows.storage import SMALL_COPY
from gradhomog.testing import jacobians


def per_task(stacked, missing=(), scale=1.0):
    """Return rows `[tasks, *shape]` as separate tensors; `missing` are the pairs (name, task) without a gradient."""
    parts = {
        name: [None if (name, task) in missing else row.clone() for task, row in enumerate(rows)]
        for name, rows in stacked.items()
    }
    return Jacobian(PerTaskRows(parts, {name: rows[0] for name, rows in stacked.items()}, scale))


def assert_same(rows, stacked, gramians=1e-12, directions=1e-9):
    """Compare statistics and directions; tolerances are relative to the longest row."""
    weights = torch.linspace(-1, 2, rows.tasks, dtype=torch.float64)
    dense = as_jacobian(stacked)
    longest = float(dense.norms().max())
    close = {"rtol": 1000 * gramians, "atol": gramians * longest**2}
    torch.testing.assert_close(rows.block_gramians, dense.block_gramians, **close)
    torch.testing.assert_close(rows.gramian(), dense.gramian(), **close)
    fresh = rows.select(range(rows.tasks))  # without cached Gramians, whose diagonals are the squared norms
    torch.testing.assert_close(fresh.squared_norms(), dense.squared_norms(), **close)
    torch.testing.assert_close(fresh.block_squared_norms, dense.block_squared_norms, **close)
    close = {"rtol": directions, "atol": directions * longest}
    torch.testing.assert_close(rows.weighted_mean(weights), dense.weighted_mean(weights), **close)
    torch.testing.assert_close(rows.mean(), dense.mean(), **close)
    assert rows.finite_tasks() == dense.finite_tasks()
    for name, value in rows.materialize().items():
        assert torch.equal(value, stacked[name])


@given(jacobians(tasks=(1, 5), params=(3, 12)), st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 4))))
def test_small_rows_with_missing_gradients(matrix, missing):
    stacked = {"a": matrix[:, :2].clone(), "b": matrix[:, 2:, None].clone()}
    missing = {(name, task) for name, task in missing if task < len(matrix)}
    for name, task in missing:
        stacked[name][task] = 0
    rows = per_task(stacked, missing)
    assert_same(rows, stacked)
    assert torch.equal(rows.select([0]).materialize()["b"], stacked["b"][:1])
    halves = per_task(stacked, missing, scale=0.5)
    assert_same(halves, {name: 0.5 * block for name, block in stacked.items()})
    assert_same(rows.select_parameters(["b"]), {"b": stacked["b"]})


@pytest.mark.parametrize(("dtype", "gramians"), [(torch.float32, 1e-6), (torch.float64, 1e-13), (torch.bfloat16, 1e-5)])
def test_rows_wider_than_a_piece(dtype, gramians):
    generator = torch.Generator().manual_seed(0)
    stacked = {
        "wide": torch.randn(3, STACKED + 77, generator=generator).to(dtype),
        "scalar": torch.randn(3, generator=generator).to(dtype),
        "empty": torch.zeros(3, 0, dtype=dtype),
    }
    assert_same(per_task(stacked), stacked, gramians, 2 * torch.finfo(dtype).eps)


def test_tiny_and_huge_rows_keep_their_products():
    stacked = {"a": torch.full((2, 5), 1e-18), "b": torch.full((2, 5), 1e-18)}
    stacked["b"][1] = 1e18
    gramians = per_task(stacked).block_gramians
    torch.testing.assert_close(gramians[0], torch.full((2, 2), 5e-36, dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(gramians[1].diagonal(), torch.tensor([5e-36, 5e36]).double(), rtol=1e-6, atol=0)


def test_statistics_have_the_graph_of_the_gradients_unless_detached():
    leaf = torch.ones(3, dtype=torch.float64, requires_grad=True)
    rows = Jacobian(PerTaskRows({"w": [2 * leaf, None, leaf.square()]}, {"w": leaf}))
    (gradient,) = torch.autograd.grad(rows.gramian().sum() + rows.mean()["w"].sum(), leaf)
    torch.testing.assert_close(gradient, torch.full((3,), 2 * (2 + 1) * (2 + 2) + (2 + 2) / 3).double())
    assert not rows.detach().gramian().requires_grad


class Allocations(TorchDispatchMode):
    """Records the shapes of all new tensors of `size` bytes or more."""

    def __init__(self, size):
        super().__init__()
        self.size, self.new_tensors = size, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        known = {arg.untyped_storage().data_ptr() for arg in torch.utils._pytree.tree_leaves((args, kwargs))
                 if isinstance(arg, torch.Tensor)}  # fmt: skip
        found = function(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(found):
            storage = value.untyped_storage() if isinstance(value, torch.Tensor) and not value.is_meta else None
            if storage is not None and storage.data_ptr() not in known and storage.nbytes() >= self.size:
                self.new_tensors.append((str(function), tuple(value.shape)))
        return found


def test_the_only_allocation_as_long_as_a_row_is_the_direction():
    rows = per_task({"a": torch.ones(4, 2 * STACKED)})
    with Allocations(4 * 2 * STACKED) as allocations:
        rows.gramian()
        rows.select(range(4)).squared_norms()
        rows.finite_tasks()
        assert allocations.new_tensors == []
        rows.weighted_mean(torch.ones(4, dtype=torch.float64))
    assert [shape for _, shape in allocations.new_tensors] == [(2 * STACKED,)]


# -- many small tensors, by a number of operations that stays small --------------------------------------------------

TASKS = 5
LARGE = SMALL_COPY // TASKS + 7  # with such a tensor, not all parameters are copied into one matrix


def with_small(small, dtype=torch.float32):
    """Rows of one large parameter and many small ones."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"large": (LARGE,), **{f"small.{index}": (3, index % 7 + 1) for index in range(small)}}
    return {name: torch.randn(TASKS, *shape, generator=generator).to(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
)
def test_statistics_and_means_are_those_of_one_matrix_in_float64(dtype, tolerance, missing):
    blocks = with_small(30, dtype)
    absent = {(name, task) for index, name in enumerate(blocks) for task in range(TASKS) if (index + task) % 4 == 0}
    found, fresh = (per_task(blocks, absent if missing else (), scale=0.5) for _ in range(2))
    exact = as_jacobian({name: block.double() for name, block in found.materialize().items()})
    close = {"rtol": tolerance, "atol": tolerance * float(exact.norms().max()) ** 2}
    torch.testing.assert_close(found.gramian(), exact.gramian(), **close)
    torch.testing.assert_close(fresh.squared_norms(), exact.squared_norms(), **close)
    weights = torch.linspace(-1, 2, TASKS, dtype=torch.float64)
    means = found.weighted_mean(weights)
    for name, expected in exact.weighted_mean(weights).items():
        assert (means[name].dtype, means[name].shape) == (dtype, expected.shape)
        close = {"rtol": tolerance, "atol": tolerance * float(expected.abs().max())}
        torch.testing.assert_close(means[name].double(), expected, **close)


def test_parameters_may_have_no_elements_and_two_dtypes():
    like = {"empty": torch.zeros(0), "half": torch.zeros(0, dtype=torch.bfloat16)}  # such as parts on one rank
    found = Jacobian(PerTaskRows({name: [tensor, tensor] for name, tensor in like.items()}, like))
    assert found.gramian().tolist() == [[0, 0], [0, 0]]
    assert found.finite_tasks() == [True, True]
    like = {str(index): torch.zeros(4, dtype=(torch.float32, torch.float64)[index % 2]) for index in range(8)}
    parts = {name: [torch.full_like(tensor, task + 1) for task in range(2)] for name, tensor in like.items()}
    found = Jacobian(PerTaskRows(parts, like))
    assert found.gramian().tolist() == [[32, 64], [64, 128]]
    assert {name: mean.dtype for name, mean in found.mean().items()} == {n: like[n].dtype for n in like}


@pytest.mark.parametrize("place", ["small.3", "large"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_task_that_is_not_finite_is_found_in_a_small_and_in_a_large_tensor(place, value):
    blocks = with_small(10)
    blocks[place][2].view(-1)[-1] = value
    assert per_task(blocks).finite_tasks() == [True, True, False, True, True]


def test_finite_numbers_whose_sum_overflows_are_finite():
    largest = torch.full((3,), torch.finfo(torch.float32).max)
    assert all_finite([largest, torch.ones(SMALL_TENSOR + 1)])
    assert all_finite([torch.full((4,), 6e4, dtype=torch.float16), torch.ones(2, dtype=torch.float16)])
    assert not all_finite([largest, torch.tensor([torch.inf]), torch.ones(SMALL_TENSOR + 1)])
    like = {"a": largest, "b": largest}
    assert Jacobian(PerTaskRows({name: [largest, largest] for name in like}, like)).finite_tasks() == [True, True]


@pytest.mark.parametrize("statistic", ["gramian", "norms", "mean", "finite_tasks"])
def test_the_number_of_operations_does_not_depend_on_that_of_small_tensors(statistic):
    class Count(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.operations += not function.is_view  # a view starts no kernel
            return function(*args, **(kwargs or {}))

    def operations(small):
        found = per_task(with_small(small))
        with Count() as count:
            getattr(found, statistic)()
        return count.operations

    assert operations(200) == operations(20)
