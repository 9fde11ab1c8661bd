"""Steps of models that `fully_shard` splits over ranks are those of one process with the whole model."""

from __future__ import annotations

import re

import pytest
import torch

from tests.ranks import fully_sharded_cases as cases
from tests.ranks import fully_sharded_errors as errors

METHODS = ["none", "pcgrad", "upgrad", "nash_mtl", "gradnorm", "uw", "static(weights=[1, 2, 5]) + imtl_g", "cr_mogm"]


def assert_close(found, expected, rtol=1e-9, atol=1e-12):
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("text", METHODS)
def test_three_steps_on_uneven_parts_of_the_batch_are_those_of_one_process(processes, text):
    (expected,) = processes(cases.whole_model, 1, text)
    found = processes(cases.steps, 3, text, [6, 1, 5])
    assert_close(found[0]["gradients"], expected["gradients"])
    assert repr(found[0]["state"]) == repr(found[1]["state"]) == repr(found[2]["state"])


@pytest.mark.parametrize("call", ["loss", "accumulated"])
def test_every_entry_point_takes_the_step_of_one_process(processes, call):
    (expected,) = processes(cases.whole_model, 1, "upgrad")
    found = processes(cases.steps, 2, "upgrad", [9, 3], call=call)
    assert_close(found[0]["gradients"], expected["gradients"])


@pytest.mark.parametrize("call", ["backward", "loss", "accumulated"])
def test_heads_that_are_not_sharded_have_the_gradients_of_one_process(processes, call):
    (expected,) = processes(cases.whole_model, 1, "upgrad")
    found = processes(cases.steps, 2, "upgrad", [9, 3], call=call, heads=False)
    for one in found:
        assert_close(one["gradients"], expected["gradients"])


@pytest.mark.parametrize("mesh", [(1, 2), (2, 1)])
def test_hybrid_sharding_counts_every_element_once(processes, mesh):
    (expected,) = processes(cases.whole_model, 1, "upgrad")
    found = processes(cases.steps, 2, "upgrad", [6, 6], mesh=mesh)
    assert_close(found[0]["gradients"], expected["gradients"])


@pytest.mark.parametrize("layers", [[], [2]])
def test_a_model_with_fewer_shards_takes_the_same_steps(processes, layers):
    (expected,) = processes(cases.whole_model, 1, "pcgrad")
    found = processes(cases.steps, 2, "pcgrad", [6, 6], layers=layers)
    assert_close(found[0]["gradients"], expected["gradients"])


def test_one_rank_takes_the_step_of_a_model_that_is_not_sharded(processes):
    (expected,) = processes(cases.whole_model, 1, "upgrad")
    (found,) = processes(cases.steps, 1, "upgrad", [12])
    assert_close(found["gradients"], expected["gradients"])


def test_a_group_of_one_rank_takes_its_own_step(processes):
    (expected,) = processes(cases.whole_model, 1, "upgrad")
    for found in processes(cases.a_group_of_one_rank, 2):
        assert_close(found, expected["gradients"][: len(found)])


@pytest.mark.parametrize("text", ["trimmed_mean", "graddrop"])
def test_methods_that_read_rows_receive_them_by_choice(processes, text):
    (expected,) = processes(cases.whole_model, 1, text)
    found = processes(cases.steps, 2, text, [6, 6], gather=True)
    assert_close(found[0]["gradients"], expected["gradients"])


def test_bfloat16_parameters_give_the_step_up_to_their_precision(processes):
    (expected,) = processes(cases.whole_model, 1, "upgrad")
    found = processes(cases.steps, 2, "upgrad", [6, 6], bfloat16=True)
    first = len(expected["gradients"]) // cases.STEPS  # later steps start from other parameters
    for rounded, whole in zip(found[0]["gradients"][:first], expected["gradients"][:first], strict=True):
        assert torch.linalg.vector_norm(rounded - whole) <= 0.05 * torch.linalg.vector_norm(whole) + 0.05


def test_gradients_are_added_to_those_before(processes):
    for difference in processes(cases.gradients_before_remain, 2)[0]:
        assert difference.abs().max() <= 1e-12


@pytest.mark.parametrize("text", ["none", "upgrad"])
def test_the_bytes_that_are_sent_do_not_depend_on_the_number_of_parameters(processes, text):
    narrow, wide = (processes(cases.bytes_sent, 2, text, width) for width in (5, 500))
    assert narrow == wide
    assert 0 < narrow[0] < 1000  # two headers, losses, flags, and nine numbers


def test_every_rank_adds_equally_many_batches(processes):
    for text in processes(cases.another_number_of_batches, 2):
        assert re.search("RankError: all ranks must have the same calls; .*`add` of `accumulated`", text), text


@pytest.mark.parametrize("name", errors.CASES)
def test_a_step_that_cannot_be_taken_raises_on_all_ranks_and_writes_no_shared_gradient(processes, name):
    case = errors.CASES[name]
    for text, expected in zip(processes(errors.error, 2, name), (case.first, case.second), strict=True):
        assert re.search(expected, text, re.DOTALL), text
