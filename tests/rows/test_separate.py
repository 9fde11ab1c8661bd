"""Rows that lie apart answer as the same rows in one tensor, and nothing as large as them is copied."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gradhomog import rows as row_math
from gradhomog.rows.separate import WIDTH, SeparateRows
from gradhomog.testing import jacobians


def apart(formed, missing=()):
    """Rows `[tasks, *shape]` by name as separate tensors; `missing` names (name, task) pairs without a gradient."""
    parts = {
        name: [None if (name, task) in missing else row.clone() for task, row in enumerate(rows)]
        for name, rows in formed.items()
    }
    return SeparateRows(parts, {name: rows[0] for name, rows in formed.items()})


def same(rows, formed):
    weights = torch.linspace(-1, 2, rows.tasks, dtype=torch.float64)
    tolerance = {"rtol": 1e-5, "atol": 1e-6 * float(max(r.double().norm() for r in formed.values())) ** 2}
    torch.testing.assert_close(rows.block_gramians()[1], row_math.block_gramians(formed)[1], **tolerance)
    torch.testing.assert_close(rows.block_squared_norms()[1], row_math.block_squared_norms(formed)[1], **tolerance)
    expected = row_math.weighted_mean(formed, weights)
    torch.testing.assert_close(rows.weighted_mean(weights), expected, rtol=1e-5, atol=1e-5)
    assert rows.finite_tasks() == row_math.finite_tasks(formed)
    for name, value in rows.formed().items():
        assert torch.equal(value, formed[name])


@given(jacobians(tasks=(1, 5), params=(3, 12)), st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 4))))
def test_small_rows_with_gaps(matrix, missing):
    formed = {"a": matrix[:, :2].clone(), "b": matrix[:, 2:, None].clone()}
    missing = {(name, task) for name, task in missing if task < len(matrix)}
    for name, task in missing:
        formed[name][task] = 0
    rows = apart(formed, missing)
    close = {"rtol": 1e-9, "atol": 1e-12 * float(matrix.norm()) ** 2}
    torch.testing.assert_close(rows.block_gramians()[1], row_math.block_gramians(formed)[1], **close)
    torch.testing.assert_close(rows.block_squared_norms()[1], row_math.block_squared_norms(formed)[1], **close)
    for name, value in rows.formed().items():
        assert torch.equal(value, formed[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_wider_than_a_piece(dtype):
    generator = torch.Generator().manual_seed(0)
    formed = {
        "wide": torch.randn(3, 2 * WIDTH + 77, generator=generator).to(dtype),
        "scalar": torch.randn(3, generator=generator).to(dtype),
        "empty": torch.zeros(3, 0, dtype=dtype),
    }
    rows = apart(formed)
    if dtype == torch.bfloat16:
        weights = torch.linspace(-1, 2, 3, dtype=torch.float64)
        expected = row_math.weighted_mean(formed, weights)
        torch.testing.assert_close(rows.weighted_mean(weights), expected)
        formed = {name: value for name, value in formed.items() if name == "scalar"}
        rows = rows.only(["scalar"])
    same(rows, formed)


def test_a_task_that_is_nan_or_infinite_is_found():
    formed = {"a": torch.ones(3, 4), "b": torch.ones(3, 2)}
    formed["b"][1, 0] = torch.nan
    formed["a"][2, 3] = torch.inf
    assert apart(formed, {("a", 0), ("b", 0)}).finite_tasks() == [True, False, False]


def test_tiny_and_huge_rows_keep_their_products():
    formed = {"a": torch.full((2, 5), 1e-18), "b": torch.full((2, 5), 1e-18)}
    formed["b"][1] = 1e18
    gramians = apart(formed).block_gramians()[1]
    torch.testing.assert_close(gramians[0], torch.full((2, 2), 5e-36, dtype=torch.float64), rtol=1e-6, atol=0)
    torch.testing.assert_close(gramians[1].diagonal(), torch.tensor([5e-36, 5e36]).double(), rtol=1e-6, atol=0)


class Allocations(TorchDispatchMode):
    """Bytes of all that is newly made and as long as `size` or longer."""

    def __init__(self, size):
        super().__init__()
        self.size, self.made = size, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        known = {arg.untyped_storage().data_ptr() for arg in torch.utils._pytree.tree_leaves((args, kwargs))
                 if isinstance(arg, torch.Tensor)}  # fmt: skip
        found = function(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(found):
            storage = value.untyped_storage() if isinstance(value, torch.Tensor) else None
            if storage is not None and storage.data_ptr() not in known and storage.nbytes() >= self.size:
                self.made.append((str(function), tuple(value.shape)))
        return found


def test_of_the_length_of_a_row_only_the_direction_is_made():
    rows = apart({"a": torch.ones(4, 20 * WIDTH)})
    with Allocations(4 * 20 * WIDTH) as allocations:
        rows.block_gramians()
        rows.block_squared_norms()
        rows.finite_tasks()
        assert allocations.made == []
        rows.weighted_mean(torch.ones(4, dtype=torch.float64))
    assert [shape for _, shape in allocations.made] == [(20 * WIDTH,)]
