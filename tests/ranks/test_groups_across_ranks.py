"""Groups of parameters (`per`) are homogenized across ranks as in one process."""

import pytest
import torch

from tests.ranks import group_cases as cases
from tests.ranks.cases import batch
from tests.ranks.comparison import assert_close, assert_steps_of_one_process

pytestmark = pytest.mark.slow_after_first

METHODS = ["upgrad", "gradnorm", "nash_mtl"]
per = pytest.mark.parametrize("per", cases.PER.values(), ids=cases.PER)


@per
@pytest.mark.parametrize("text", METHODS)
def test_three_steps_on_uneven_parts_of_the_batch_are_those_of_one_process(processes, text, per):
    for sizes in ([7, 5], [6, 1, 5]):
        assert_steps_of_one_process(processes, batch, text, sizes, per=per)
    assert [name for name in processes(batch, 1, text, [12], per=per)[0]["state"] if name.startswith("group ")]


@pytest.mark.parametrize("call", ["loss", "accumulated"])
@pytest.mark.parametrize("text", ["upgrad", "none"])
def test_every_entry_point_takes_the_step_of_one_process(processes, text, call):
    assert_steps_of_one_process(processes, batch, text, [9, 3], per="layer", call=call)


@pytest.mark.parametrize("text", ["trimmed_mean", "graddrop"])
def test_methods_that_read_rows_receive_those_of_their_group(processes, text):
    assert_steps_of_one_process(processes, batch, text, [7, 5], per="tensor", gather=True)


@per
@pytest.mark.parametrize("text", ["upgrad", "gradnorm"])
def test_a_task_may_be_absent_on_one_rank(processes, text, per):
    assert_steps_of_one_process(processes, cases.task_absent_on_rank_1, text, [7, 5], per)


def test_a_task_that_is_not_finite_in_one_group_is_dropped_from_all(processes):
    assert_steps_of_one_process(processes, cases.infinite_in_one_group, "upgrad", [7, 5])


@per
@pytest.mark.parametrize("text", ["upgrad", "gradnorm"])
@pytest.mark.parametrize("counts", [[3, 1], [1, 2, 1]])
def test_tasks_over_ranks_take_the_steps_of_one_process(processes, counts, text, per):
    assert_steps_of_one_process(processes, cases.tasks, text, counts, per)


@pytest.mark.parametrize("text", ["gradnorm", "nash_mtl"])
def test_one_process_continues_from_a_checkpoint_of_two_ranks(processes, text):
    (expected,) = processes(batch, 1, text, [12], per="layer")
    checkpoint = processes(batch, 2, text, [7, 5], per="layer", steps=2)[0]
    (found,) = processes(batch, 1, text, [12], per="layer", steps=1, start=checkpoint)
    assert_close(found["state"], expected["state"])
    assert_close(found["gradients"], expected["gradients"][-len(found["gradients"]) :])


@pytest.mark.parametrize("per", ["layer", "tensor", {"all": "*"}, {"last": "second.*", "rest": "*"}], ids=str)
def test_a_group_may_have_several_dtypes_no_elements_and_no_gradient(processes, per):
    (expected,) = processes(cases.mixed_dtypes, 1, per, [12])
    assert len(expected) == 4  # weights and biases
    for found in processes(cases.mixed_dtypes, 3, per, [6, 1, 5]):
        assert [part.dtype for part in found] == [part.dtype for part in expected]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("per", "groups"), [("model", 1), ("layer", 2), ("tensor", 4)])
def test_every_group_is_exchanged_by_messages_of_its_own(processes, per, groups):
    numbers = 4 * 5 + 5 + 5 * 3 + 3
    for found in processes(cases.messages, 2, per):
        assert found["reduce_scatter"] == 3 * groups  # one for each task
        assert found["all_reduce"] == groups + (per != "model")  # Gramians; the check of rows before the groups
        assert found["all_gather"] == 3 + groups  # headers, losses, flags; directions
        assert 3 * 4 * numbers <= found["bytes"] <= 3 * 4 * (numbers + groups)  # half of the float64 rows


@pytest.mark.parametrize(
    ("text", "per"), [("none", "model"), ("uw", "model"), ("pcgrad", "model"), ("upgrad", "layer")]
)
@pytest.mark.parametrize("local", [False, True])
def test_an_overflow_on_one_rank_lowers_the_scale_on_all_and_the_next_step_is_taken(processes, text, per, local):
    assert processes(cases.overflow_on_rank_1, 2, text, per, local) == [[(512.0, 0, False), (512.0, 1, True)]] * 2
