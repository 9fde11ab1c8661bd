"""Steps across ranks are those of one process, with the same bits on every rank."""

import pytest
import torch

from tests.ranks import cases, group_cases
from tests.ranks.comparison import assert_close, assert_same_bits, assert_steps_of_one_process

pytestmark = pytest.mark.slow_after_first

METHODS = ["upgrad", "none", "pcgrad", "nash_mtl", "gradnorm", "uw", "static(weights=[1, 2, 5]) + imtl_g", "cr_mogm"]


@pytest.mark.parametrize("text", METHODS)
def test_three_steps_on_uneven_parts_of_the_batch_are_those_of_one_process(processes, text):
    assert_steps_of_one_process(processes, cases.batch, text, [6, 1, 5])


@pytest.mark.parametrize("call", ["loss", "accumulated"])
@pytest.mark.parametrize("sizes", [[6, 6], [9, 3]])
def test_every_entry_point_takes_the_step_of_one_process(processes, call, sizes):
    assert_steps_of_one_process(processes, cases.batch, "upgrad", sizes, call=call)


@pytest.mark.parametrize("text", ["trimmed_mean", "graddrop", "tracked", "excess_mtl"])
def test_methods_that_read_rows_receive_them_by_choice(processes, text):
    assert_steps_of_one_process(processes, cases.batch, text, [5, 7], gather=True)


def test_bfloat16_gives_the_step_of_float64_up_to_its_precision(processes):
    (expected,) = processes(cases.batch, 1, "upgrad", [12])
    found = processes(cases.half_precision, 2, [6, 6])
    assert_same_bits(found)
    for half, whole in zip(found[0], expected["gradients"], strict=False):  # those of the first of three steps
        assert half.dtype == torch.bfloat16
        assert torch.linalg.vector_norm(half.double() - whole) <= 0.05 * torch.linalg.vector_norm(whole) + 0.05


def test_each_row_is_sent_while_the_next_pass_runs(processes):
    for found in processes(cases.bytes_sent_before_each_pass, 2, 4, 100):
        assert found["before"] == [task * found["parameters"] // 2 for task in range(4)]


@pytest.mark.parametrize("text", ["pcgrad", "none", "upgrad", "famo"])
@pytest.mark.parametrize("counts", [[1, 1], [3, 1], [1, 2, 1]])
def test_tasks_over_ranks_give_the_step_of_one_process(processes, text, counts):
    assert_steps_of_one_process(processes, group_cases.tasks, text, counts)


@pytest.mark.parametrize("synchronize", [True, False])
def test_a_wrapped_model_has_the_same_gradients_with_and_without_synchronization(processes, synchronize):
    (expected,) = processes(cases.batch, 1, "upgrad", [12])
    found = processes(cases.wrapped_model, 2, synchronize)
    encoder = 4  # gradients of the first step; the heads' are averaged by the wrapper, too
    assert_close(found[0][:encoder], expected["gradients"][:encoder])
    assert_same_bits(found)


def test_local_directions_are_averaged_and_reported(processes):
    found = processes(cases.local_directions, 2)
    assert_same_bits([one["gradients"] for one in found])
    assert [one["exchanged"] for one in found] == ["directions", "directions"]
