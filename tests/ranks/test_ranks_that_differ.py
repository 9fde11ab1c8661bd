"""A rank that has other options, values, labels or gradients than the others: the step of one process, or an error."""

import re

import numpy
import pytest
import torch

from gradhomog import OptionError, RankError, Ranks
from gradhomog.ranks.replicas import check_replicas, digests
from tests.ranks import difference_cases as cases

pytestmark = pytest.mark.slow_after_first


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        *((option, "same options.*'inspect': (True|False)") for option in ("level", "scaler")),
        ("residuals", "same options.*'gather': (True|False)"),
        ("examples", "same options.*'examples': '(none|numbers)'.*all or none of the ranks pass `examples`"),
        ("per", "same options.*'per': '(layer|model)'"),
        ("nonfinite", "same pipeline.*'nonfinite': '(drop|raise)'"),
        ("steps", "same number of steps; rank 1 differs from rank 0. Rank . has (0|1)"),
        ("resumed", "same progress since the pipeline was .* loaded; rank 1 differs.*Rank . has '(none|steps)'"),
        *(
            (values, "same values; parameter '0.weight' of rank 1 differs from .*same seed")
            for values in ("initial values", "checkpoint of the pipeline only")
        ),
    ],
)
def test_an_option_or_value_of_one_rank_is_named_on_all(processes, what, expected):
    for text in processes(cases.one_rank_differs, 2, what):
        assert re.search(f"RankError: all ranks must have the {expected}", text), text


def test_the_parts_of_a_head_must_be_used_in_the_same_order(processes):
    for text in processes(cases.head_in_another_order, 2):
        assert re.search("RankError.*parameter 0 of the head of task 0 of rank 1 differs.*same order", text), text


@pytest.mark.parametrize(("compare_every", "steps"), [(2, 2), (3, 3), (None, 4)])
@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("parameter", "parameter '2.weight'"), ("head", "parameter 1 of the head of task 1"),
        ("state", "the state gradnorm.log_weights"), ("state of a group", "the state 2: gradnorm.log_weights"),
    ],
)  # fmt: skip
def test_replicas_that_diverge_raise_at_the_next_comparison(processes, what, name, compare_every, steps):
    for taken, text in processes(cases.diverges_after_one_step, 2, what, compare_every):
        assert taken == steps
        expected = "no error" if compare_every is None else f"RankError: .*same values; {name}.* of rank 1 differs"
        assert re.match(expected, text), text


@pytest.mark.parametrize("change", ["factor", "noise", "permutation", "sign"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_digests_notice_a_change_of_several_tensors_but_not_rounding(change, dtype):
    generator = torch.Generator().manual_seed(0)
    tensors, noise = torch.randn(2, 8, 1001, generator=generator, dtype=torch.float64).to(dtype)
    changed = {
        "factor": 1.1 * tensors,
        "noise": tensors + 0.1 * noise,
        "permutation": tensors.roll(1, 1),
        "sign": -tensors,
    }
    rounded = tensors * (1 + 1e-4)
    with pytest.raises(RankError, match=r"\d of rank 1 differs"):
        check_replicas("01234567", torch.tensor([digests(tensors), digests(changed[change])]))
    check_replicas("01234567", torch.tensor([digests(tensors), digests(rounded)]))


@pytest.mark.parametrize("compare_every", [0, 1.5, True])
def test_the_number_of_steps_between_comparisons_is_a_positive_integer(compare_every):
    with pytest.raises(OptionError, match="`compare_every` must be an integer ≥ 1 or None"):
        Ranks("batch", compare_every=compare_every)


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo"])
def test_gloo_is_recognized_by_device(processes, backend):
    assert processes(cases.reduce_scatter, 2, backend) == [(True, [1.0]), (True, [3.0])]


@pytest.mark.parametrize("call", ["backward", "accumulated"])
def test_the_graphs_of_a_head_may_differ(processes, call):
    (expected,) = processes(cases.heads_of_other_inputs, 1, call, False)
    for found in processes(cases.heads_of_other_inputs, 2, call, True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("call", ["backward", "loss", "accumulated"])
def test_inputs_that_require_grad_are_those_of_their_rank(processes, call):
    (expected,) = processes(cases.points_of_a_differential_equation, 1, call, [12])
    for found in processes(cases.points_of_a_differential_equation, 2, call, [7, 5]):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_inputs_that_require_grad_are_not_heads_of_tasks_over_ranks(processes):
    first, second = processes(cases.points_of_a_differential_equation, 2, "tasks", [7, 5])
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("call", ["backward", "loss", "accumulated"])
def test_tasks_are_chosen_among_the_same_tasks_on_all_ranks(processes, call):
    for text in processes(cases.absent_with_a_method_that_chooses, 2, call):
        assert re.search("RankError: all ranks must have the same tasks to choose from; rank 1 differs", text), text


@pytest.mark.parametrize(
    ("case", "text"),
    [
        *(
            (cases.no_labels_on_one_rank, text)
            for text in ("none", "uw", "pcgrad", "upgrad", "rotograd", "rotate + pcgrad")
        ),
        *((cases.no_examples_on_rank_1, text) for text in ("none", "uw", "pcgrad", "upgrad")),
    ],
)
def test_a_loss_with_zero_examples_has_no_effect(processes, text, case):
    (expected,) = processes(case, 1, text, False)
    for found in processes(case, 2, text, True):
        torch.testing.assert_close(found[:-1], expected[:-1], rtol=1e-9, atol=1e-12)
        assert found[-1] is None
        assert expected[-1] is None


@pytest.mark.parametrize("text", ["none", "uw", "pcgrad"])
def test_an_infinite_gradient_on_one_rank_raises_on_all(processes, text):
    for found in processes(cases.infinite_gradient_on_rank_1, 2, text):
        assert re.match("NonfiniteError: (task 0.*w.r.t. 0.weight|the gradient of the shared)", found), found


def test_the_head_of_a_task_that_one_rank_drops_is_averaged_with_zero(processes):
    (expected,) = processes(cases.head_gradients, 1)
    mean = [*expected[:2], *(gradient / 2 for gradient in expected[2:4]), *expected[4:]]  # weight and bias of each head
    for found in processes(cases.dropped_on_rank_1, 2):
        torch.testing.assert_close(found, mean)


SEED = "RankError: all ranks must have the same values; parameter .* of rank 1 differs"
OVER = "`over` must be 'tasks'; got 'batch'"


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        ("another seed", SEED, SEED), ("local", SEED, SEED), ("over the batch", OVER, OVER),
        ("no tasks", "RankError: rank 1 raised an error", "must contain at least one task"),
        ("fewer queries", r"RankError.*same sizes of tasks.*Rank 0 has .*\(9,\)", r"RankError.*Rank 1 has .*\(6,\)"),
    ],
)  # fmt: skip
def test_a_meta_step_that_cannot_be_taken_raises_on_all_ranks(processes, case, first, second):
    for (text, steps), expected in zip(processes(cases.learner_error, 2, case), (first, second), strict=True):
        assert re.search(expected, text), text
        assert steps == 0


@pytest.mark.parametrize(
    "examples", [torch.tensor(5), torch.tensor([1, 2]), numpy.int64(5), numpy.ones(2), [torch.tensor(1)], "12", -1]
)
def test_examples_must_be_numbers(examples):
    with pytest.raises(OptionError, match=r"`examples` must be a finite number ≥ 0, or a list.*tolist"):
        Ranks("batch", examples=examples)
