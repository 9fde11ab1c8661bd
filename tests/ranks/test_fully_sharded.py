"""Steps of models that `fully_shard` splits over ranks are those of one process with the whole model."""

from __future__ import annotations

import re

import pytest
import torch

from tests.ranks import fully_sharded_cases as cases

METHODS = ["none", "pcgrad", "upgrad", "nash_mtl", "gradnorm", "uw", "static(weights=[1, 2, 5]) + imtl_g", "cr_mogm"]


def assert_close(found, expected, rtol=1e-9, atol=1e-12):
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("text", METHODS)
def test_three_steps_on_uneven_parts_of_the_batch_are_those_of_one_process(processes, text):
    (expected,) = processes(cases.steps_of_one_process, 1, text, "backward")
    found = processes(cases.steps, 3, text, "backward", [6, 1, 5])
    assert_close(found[0]["gradients"], expected["gradients"])
    assert repr(found[0]["state"]) == repr(found[1]["state"]) == repr(found[2]["state"])


@pytest.mark.parametrize("call", ["loss", "accumulated"])
def test_every_entry_point_takes_the_step_of_one_process(processes, call):
    (expected,) = processes(cases.steps_of_one_process, 1, "upgrad", call)
    found = processes(cases.steps, 2, "upgrad", call, [9, 3])
    assert_close(found[0]["gradients"], expected["gradients"])


@pytest.mark.parametrize("mesh", [(1, 2), (2, 1)])
def test_hybrid_sharding_counts_every_element_once(processes, mesh):
    (expected,) = processes(cases.steps_of_one_process, 1, "upgrad", "backward")
    found = processes(cases.steps, 2, "upgrad", "backward", [6, 6], mesh)
    assert_close(found[0]["gradients"], expected["gradients"])


@pytest.mark.parametrize("layers", [[], [2]])
def test_a_model_with_fewer_shards_takes_the_same_steps(processes, layers):
    (expected,) = processes(cases.steps_of_one_process, 1, "pcgrad", "backward")
    found = processes(cases.steps, 2, "pcgrad", "backward", [6, 6], None, False, False, layers)
    assert_close(found[0]["gradients"], expected["gradients"])


def test_one_rank_takes_the_step_of_a_model_that_is_not_sharded(processes):
    (expected,) = processes(cases.steps_of_one_process, 1, "upgrad", "backward")
    (found,) = processes(cases.steps, 1, "upgrad", "backward", [12])
    assert_close(found["gradients"], expected["gradients"])


def test_a_group_of_one_rank_takes_its_own_step(processes):
    (expected,) = processes(cases.steps_of_one_process, 1, "upgrad", "backward")
    for found in processes(cases.a_group_of_one_rank, 2):
        assert_close(found, expected["gradients"][: len(found)])


@pytest.mark.parametrize("text", ["trimmed_mean", "graddrop"])
def test_methods_that_read_rows_receive_them_by_choice(processes, text):
    (expected,) = processes(cases.steps_of_one_process, 1, text, "backward")
    found = processes(cases.steps, 2, text, "backward", [6, 6], None, True)
    assert_close(found[0]["gradients"], expected["gradients"])


def test_bfloat16_parameters_give_the_step_up_to_their_precision(processes):
    (expected,) = processes(cases.steps_of_one_process, 1, "upgrad", "backward")
    found = processes(cases.steps, 2, "upgrad", "backward", [6, 6], None, False, True)
    first = len(expected["gradients"]) // cases.STEPS  # later steps start from other parameters
    for half, whole in zip(found[0]["gradients"][:first], expected["gradients"][:first], strict=True):
        assert torch.linalg.vector_norm(half - whole) <= 0.05 * torch.linalg.vector_norm(whole) + 0.05


def test_gradients_are_added_to_those_before(processes):
    for difference in processes(cases.gradients_before_remain, 2)[0]:
        assert difference.abs().max() <= 1e-12


@pytest.mark.parametrize("text", ["none", "upgrad"])
def test_only_the_gramian_travels(processes, text):
    parameters = 8 * (4 * 5 + 5 + 5 * 3 + 3)
    for sent in processes(cases.bytes_sent, 2, text):
        assert sent <= parameters  # two headers, losses, flags, and nine numbers


def test_every_rank_adds_equally_many_batches(processes):
    for text in processes(cases.another_number_of_batches, 2):
        assert re.search("RankError: all ranks must have the same calls; .*`add` of `accumulated`", text), text


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        ("absent on rank 1", "RankError.*same present tasks; rank 1 differs.*0 . output", "RankError"),
        ("not finite on rank 1", "NonfiniteError: task 1 is not finite.*zero_grad", "NonfiniteError: task 1"),
        ("drop", "OptionError.*nonfinite='drop'", "OptionError"),
        ("weighted heads", "OptionError.*heads='weighted'", "OptionError"),
        ("local", "OptionError.*require Ranks.'batch'", "OptionError"),
        ("tasks", "OptionError.*require Ranks.'batch'", "OptionError"),
        ("features", "OptionError: `features` must be omitted", "OptionError"),
        ("reads rows", "OptionError: trimmed_mean reads rows.*gather=True", "OptionError"),
        ("part of the model", "OptionError: either all or none.*'2.weight' is not", "OptionError"),
        ("listed after, one layer", "OptionError: either all or none.*list them once before", "OptionError"),
        ("listed after", "OptionError: `parameters` must be the DTensors.*list them once before", "OptionError"),
        ("no synchronization", "OptionError.*set_requires_gradient_sync", "OptionError"),
        ("raises on rank 1", "RankError: rank 1 raised", "OptionError: the loss of task 0 must be a real scalar"),
        (
            "no examples of a loss that is not finite",
            "RankError: rank 1 raised",
            "OptionError: the loss of task 1 must",
        ),
        ("examples", "OptionError: `examples` must be positive for every task", "OptionError"),
    ],
)
def test_a_step_that_cannot_be_taken_raises_on_all_ranks_and_writes_no_shared_gradient(processes, case, first, second):
    found = processes(cases.message, 2, case)
    for text, expected in zip(found, (first, second), strict=True):
        assert re.search(expected, text, re.DOTALL), text
