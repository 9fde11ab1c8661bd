"""Models with layers that compute something over the examples of all ranks, also in their backward passes."""

import re

import pytest
import torch
from torch.distributed.nn import functional
from torch.nn.modules._functions import SyncBatchNorm

from gradhomog.autograd.loss_step import COLLECTIVE
from tests.ranks import synchronized_cases as cases

pytestmark = pytest.mark.slow_after_first


@pytest.mark.parametrize("unlabelled", cases.UNLABELLED)
@pytest.mark.parametrize("call", ["backward", "features", "accumulated"])
@pytest.mark.parametrize("text", ["uw", "upgrad"])
def test_synchronized_normalization_gives_the_step_of_one_process(processes, text, call, unlabelled):
    (expected,) = processes(cases.take_step, 1, text, call, unlabelled)
    for found in processes(cases.take_step, 2, text, call, unlabelled):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("call", ["backward", "features", "accumulated"])
def test_a_task_that_is_absent_on_one_rank_raises_on_all(processes, call):
    for text in processes(cases.message, 2, "upgrad", call, "task 2 on rank 1", without="none"):
        assert re.search("RankError: all ranks must have the same present tasks; .*such as 0 . output.sum", text), text


def test_a_loss_without_examples_must_be_finite(processes):
    first, second = processes(cases.message, 2, "upgrad", "backward", "task 1 on rank 0", without="nan")
    assert re.search("OptionError: the loss of task 1 must be finite", first), first
    assert re.search("RankError: rank 0 raised an error", second), second


@pytest.mark.parametrize(
    "function", [SyncBatchNorm, functional._AllReduce, functional._AllGather, functional._Reduce_Scatter]
)
def test_layers_with_collective_backward_passes_are_recognized_by_the_names_of_their_nodes(function):
    assert COLLECTIVE.search(function._backward_cls.__name__)
