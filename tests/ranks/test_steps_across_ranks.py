"""Steps and meta-steps across ranks are those of one process, with the bytes of the cost model."""

import pytest
import torch

from tests.ranks import cases, group_cases
from tests.ranks.comparison import assert_close, assert_same_bits, assert_steps_of_one_process

pytestmark = pytest.mark.slow_after_first

METHODS = ["upgrad", "none", "pcgrad", "nash_mtl", "gradnorm", "uw", "static(weights=[1, 2, 5]) + imtl_g", "cr_mogm"]
RARE = "peakscale(warmup=1, spacing=1)"
"""Reads rows in the first and the third of three steps."""


@pytest.mark.parametrize("text", [*METHODS, RARE])
def test_three_steps_on_uneven_parts_of_the_batch_are_those_of_one_process(processes, text):
    assert_steps_of_one_process(processes, cases.batch, text, [6, 1, 5])


@pytest.mark.parametrize("call", ["loss", "accumulated", "window"])
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


@pytest.mark.parametrize("text", ["pcgrad", "none", "upgrad", "famo", RARE])
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


SMALL = 2000  # bytes of headers, losses, Gramians and padding


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("over", "tasks"), [("batch", 1), ("batch", 4), ("tasks", 1), ("tasks", 3)])
def test_rows_and_the_direction_are_sent_once(processes, ranks, over, tasks):
    """Data-parallel training sends 2 P (K − 1) / K bytes, for any number of tasks."""
    for found in processes(cases.bytes_sent, ranks, over, tasks, 200):
        share = found["parameters"] * (ranks - 1) / ranks
        assert abs(found["total"] - (tasks + 1) * share) <= SMALL


@pytest.mark.parametrize("text", ["none", "static(weights=[1, 2, 3, 4])", "uw"])
def test_weights_that_read_no_row_cost_what_data_parallelism_costs(processes, text):
    for found in processes(cases.bytes_sent, 3, "batch", 4, 200, text):
        assert abs(found["total"] - 2 * found["parameters"] * 2 / 3) <= SMALL


@pytest.mark.parametrize("text", ["upgrad", "none", "rotate + reweight", "gradnorm", RARE])
@pytest.mark.parametrize("counts", [[1, 3], [2, 1, 1]])
def test_three_meta_steps_are_those_of_one_process(processes, text, counts):
    (expected,) = processes(cases.learner_steps, 1, "maml", text, [sum(counts)])
    found = processes(cases.learner_steps, len(counts), "maml", text, counts)
    for one in found:
        torch.testing.assert_close(one["parameters"], expected["parameters"], rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(one["losses"], expected["losses"])
        assert one["domains"] == expected["domains"]
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0]["parameters"], other["parameters"], strict=True))


def test_local_meta_steps_keep_replicas_equal(processes):
    first, second = processes(cases.learner_steps, 2, "fomaml", "pcgrad", [2, 2], True)
    assert all(torch.equal(a, b) for a, b in zip(first["parameters"], second["parameters"], strict=True))


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_parameter_is_unused_if_no_task_of_any_rank_uses_it(processes, engine, local):
    found = processes(cases.learner_gradients_of_unused_layers, 2, engine, local)
    assert found == [{"partly": True, "never": False, "head": False}] * 2
