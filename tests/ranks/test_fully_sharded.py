"""Steps of models that `fully_shard` splits over ranks are those of one process with the whole model."""

import re

import pytest
import torch

from tests.ranks import fully_sharded_cases as cases
from tests.ranks.comparison import assert_close, assert_same_bits
from tests.ranks.group_cases import PER

pytestmark = pytest.mark.slow_after_first

METHODS = ["upgrad", "none", "pcgrad", "nash_mtl", "gradnorm", "uw", "static(weights=[1, 2, 5]) + imtl_g", "cr_mogm"]


@pytest.mark.parametrize(
    ("text", "sizes", "options"),
    [
        *((text, [6, 1, 5], {}) for text in METHODS),
        *(("upgrad", [9, 3], {"call": call}) for call in ("loss", "accumulated")),
        *(("upgrad", [9, 3], {"call": call, "heads": False}) for call in ("backward", "loss", "accumulated")),
        *(("upgrad", [6, 6], {"mesh": mesh}) for mesh in ((1, 2), (2, 1))),  # hybrid: every element counts once
        *(("pcgrad", [6, 6], {"layers": layers}) for layers in ([], [2])),  # fewer shards
        *((text, [6, 6], {"gather": True}) for text in ("trimmed_mean", "graddrop")),
        ("upgrad", [12], {}),
        *((text, [6, 1, 5], {"per": per}) for text in ("upgrad", "gradnorm") for per in PER.values()),
        *(("upgrad", [9, 3], {"per": "layer", "call": call}) for call in ("loss", "accumulated")),
        ("trimmed_mean", [9, 3], {"per": "layer", "gather": True}),
    ],
    ids=str,
)
def test_three_steps_are_those_of_one_process_with_the_whole_model(processes, text, sizes, options):
    (expected,) = processes(cases.steps, 1, text, [12], layers=None, per=options.get("per", "model"))
    found = processes(cases.steps, len(sizes), text, sizes, **options)
    assert_close(found[0], expected)
    assert_same_bits(found)


@pytest.mark.parametrize("text", ["upgrad", "trimmed_mean"])
@pytest.mark.parametrize("layers", [None, (0, 2)], ids=["replicas", "sharded"])
def test_three_steps_in_the_metric_of_adam_are_those_of_one_process(processes, text, layers):
    (expected,) = processes(cases.steps, 1, text, [12], layers=None, in_metric=True)
    found = processes(cases.steps, 2, text, [9, 3], layers=layers, in_metric=True, gather=True)
    assert_close(found[0]["gradients"], expected["gradients"])
    assert_same_bits(found)


def test_a_group_of_one_rank_takes_its_own_step(processes):
    (expected,) = processes(cases.steps, 1, "upgrad", [12], layers=None)
    for found in processes(cases.a_group_of_one_rank, 2):
        assert_close(found, expected["gradients"][: len(found)])


def test_bfloat16_parameters_give_the_step_up_to_their_precision(processes):
    (expected,) = processes(cases.steps, 1, "upgrad", [12], layers=None)
    found = processes(cases.steps, 2, "upgrad", [6, 6], bfloat16=True)
    first = len(expected["gradients"]) // cases.STEPS  # later steps start from other parameters
    for rounded, whole in zip(found[0]["gradients"][:first], expected["gradients"][:first], strict=True):
        assert torch.linalg.vector_norm(rounded - whole) <= 0.05 * torch.linalg.vector_norm(whole) + 0.05


def test_gradients_are_added_to_those_before(processes):
    for difference in processes(cases.gradients_before_remain, 2)[0]:
        assert difference.abs().max() <= 1e-12


@pytest.mark.parametrize("text", ["upgrad", "none"])
def test_the_bytes_that_are_sent_do_not_depend_on_the_number_of_parameters(processes, text):
    narrow, wide = (processes(cases.bytes_sent, 2, text, width) for width in (5, 500))
    assert narrow == wide
    assert 0 < narrow[0] < 1000  # two headers, losses, flags, and nine numbers


def test_every_rank_adds_equally_many_batches(processes):
    for text in processes(cases.another_number_of_batches, 2):
        assert re.search("RankError: all ranks must have the same calls; .*`add` of `accumulated`", text), text
