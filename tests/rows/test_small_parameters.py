"""Many small tensors have the statistics of the same rows in one matrix, by a number of operations that stays small."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradhomog import as_jacobian
from gradhomog.rows import Jacobian, PerTaskRows, all_finite
from gradhomog.rows.arithmetic import SMALL_TENSOR
from gradhomog.rows.storage import SMALL_COPY, group_small

TASKS = 5
LARGE = SMALL_COPY // TASKS + 7  # with such a tensor, not all parameters are copied into one matrix


def rows(
    small: int, dtype: torch.dtype = torch.float32, missing: bool = False, last: tuple[str, float] | None = None
) -> Jacobian:
    """One large parameter and many small ones, of which some have no gradient for a task.

    `last`: a name, and the last entry of its gradient for task 2.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = {"large": (LARGE,), **{f"small.{index}": (3, index % 7 + 1) for index in range(small)}}
    like = {name: torch.empty(shape, dtype=dtype) for name, shape in shapes.items()}
    parts = {
        name: [
            None if missing and (index + task) % 4 == 0 else torch.randn(shape, generator=generator).to(dtype)
            for task in range(TASKS)
        ]
        for index, (name, shape) in enumerate(shapes.items())
    }
    if last is not None:
        parts[last[0]][2].view(-1)[-1] = last[1]
    return Jacobian(PerTaskRows(parts, like, scale=0.5))


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
)
def test_statistics_and_means_are_those_of_one_matrix_in_float64(dtype, tolerance, missing):
    found = rows(30, dtype, missing)
    exact = as_jacobian({name: block.double() for name, block in found.materialize().items()})
    scale = float(exact.norms().max())
    close = {"rtol": tolerance, "atol": tolerance * scale**2}
    torch.testing.assert_close(found.gramian(), exact.gramian(), **close)
    torch.testing.assert_close(rows(30, dtype, missing).squared_norms(), exact.squared_norms(), **close)
    weights = torch.linspace(-1, 2, TASKS, dtype=torch.float64)
    for name, expected in exact.weighted_mean(weights).items():
        mean = found.weighted_mean(weights)[name]
        assert (mean.dtype, mean.shape) == (dtype, expected.shape)
        torch.testing.assert_close(
            mean.double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())
        )


def test_a_parameter_without_elements_is_in_a_group():
    like = {"empty": torch.zeros(0), "half": torch.zeros(0, dtype=torch.bfloat16), "full": torch.ones(2)}
    assert group_small(like, TASKS) == [["empty", "full"], ["half"]]
    without = {name: like[name] for name in ("empty", "half")}  # such as the parts of small parameters on one rank
    found = Jacobian(PerTaskRows({name: [tensor, tensor] for name, tensor in without.items()}, without))
    assert found.gramian().tolist() == [[0, 0], [0, 0]]
    assert found.finite_tasks() == [True, True]


def test_parameters_of_two_dtypes_are_not_mixed():
    like = {str(index): torch.zeros(4, dtype=(torch.float32, torch.float64)[index % 2]) for index in range(8)}
    assert group_small(like, TASKS) == [["0", "2", "4", "6"], ["1", "3", "5", "7"]]
    parts = {name: [torch.full_like(tensor, task + 1) for task in range(2)] for name, tensor in like.items()}
    found = Jacobian(PerTaskRows(parts, like))
    assert found.gramian().tolist() == [[32, 64], [64, 128]]
    assert {name: mean.dtype for name, mean in found.mean().items()} == {n: like[n].dtype for n in like}


@pytest.mark.parametrize("place", ["small.3", "large"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_task_that_is_not_finite_is_found_in_a_small_and_in_a_large_tensor(place, value):
    found = rows(10, last=(place, value))
    assert found.finite_tasks() == [True, True, False, True, True]


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
        found = rows(small)
        with Count() as count:
            getattr(found, statistic)()
        return count.operations

    assert operations(200) == operations(20)
