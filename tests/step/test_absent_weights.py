"""The ratio of two tasks' weights does not depend on the tasks that are present; a step of all tasks is as before."""

import warnings

import pytest
import torch

import gradhomog
from gradhomog import OneTaskWarning

TASKS = "abc"
LOSSES = {"a": 0.5, "b": 2.0, "c": 1.5}
ROWS = dict(zip(TASKS, torch.tensor([[3.0, 0, 1], [1, 1, 0], [0, 2, 5]], dtype=torch.float64), strict=True))
WEIGHING = [name for name in gradhomog.available() if gradhomog.pipeline(name).requirements.weighing]
OPTIONS = {"static": "static(weights={'a': 5, 'b': 2, '*': 1})", "lra": "lra(primary='a')", "uw": "uw(lr=0.1)"}
LEARNING = {"famo": 0.06, "relobralo": 1e-3}
"""Methods that change their weights in the step itself, by the tasks that are present; the relative change."""


def take(pipe, tasks, losses=LOSSES):
    rows, values = torch.stack([ROWS[task] for task in tasks]), torch.tensor([losses[task] for task in tasks])
    return pipe.homogenize(rows, values, domains=[*tasks], kernel_traces=values.double())


def trained(text):
    pipe = gradhomog.pipeline(text)
    for step in range(300 if text.startswith("lra") else 4):  # λ converges
        take(pipe, TASKS, {task: loss * (1 + 0.1 * step * (task == "b")) for task, loss in LOSSES.items()})
    take(pipe, TASKS)
    return pipe


def loaded(pipe, text):
    other = gradhomog.pipeline(text)
    other.load_state_dict(pipe.state_dict())
    return other


def test_the_methods_are_those_that_weigh_losses_or_keep_weights():
    assert {"static", "uw", "famo", "dwa", "rlw", "imtl_l", "auto", "peakscale", "gradnorm"} <= set(WEIGHING)
    assert not {"mgda", "pcgrad", "reweight", "graddrop", "tracked"} & set(WEIGHING)


@pytest.mark.parametrize("scale", ["mean", "paper"])
@pytest.mark.parametrize("method", [name for name in WEIGHING if name != "rlw"])
def test_a_weight_is_that_of_the_step_of_all_tasks(method, scale):
    text = OPTIONS.get(method, method)
    if scale == "paper":
        text = f"{text[:-1]}, scale='paper')" if text.endswith(")") else f"{text}(scale='paper')"
        if not any(member.homogenizer.overrides("paper_scale") for member in gradhomog.pipeline(method).members):
            pytest.skip("no other scale")
    pipe = trained(text)
    whole = take(loaded(pipe, text), TASKS).weights / 3
    for tasks in ("a", "b", "ab", "ca", "cba"):
        found = take(loaded(pipe, text), tasks).weights / len(tasks)
        # An absent loss is a zero term; the mean is over the tasks that are present.
        expected = torch.stack([whole[TASKS.index(task)] for task in tasks])
        expected *= 3 / len(tasks) if scale == "mean" else 1
        torch.testing.assert_close(found, expected, rtol=LEARNING.get(method, 1e-9), atol=1e-12)


def test_random_weights_of_one_task_at_a_time_have_mean_one():
    pipe = trained("rlw")
    found = torch.cat([take(pipe, TASKS[step % 3]).weights for step in range(600)])
    assert found.std() > 0.3
    assert abs(found.mean() - 1) < 0.1


@pytest.mark.parametrize("first", [{"a": 1.0, "b": None}, {"a": None, "b": 1.0}])
def test_tasks_that_the_caller_names_count_before_they_are_met(first):
    w = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    pipe = gradhomog.pipeline("static(weights={'a': 5, '*': 1})")
    losses = {name: None if value is None else w["ab".index(name)] for name, value in first.items()}
    gradhomog.loss(losses, pipe, parameters=[w], reduction="sum").backward()
    expected = torch.tensor([5 / 3 if first["a"] else 0.0, 1 / 3 if first["b"] else 0.0])
    torch.testing.assert_close(w.grad, expected.double())
    w.grad = None
    gradhomog.loss({"b": w[1]}, pipe, parameters=[w]).backward()  # without an entry for the absent task
    torch.testing.assert_close(w.grad, torch.tensor([0, 1 / 3]).double())


def test_names_with_weights_count_in_the_first_step():
    pipe = gradhomog.pipeline("static(weights={'a': 5, 'b': 1})")
    assert take(pipe, "b").weights.tolist() == [1 / 3]


def test_tasks_without_names_are_absent_only_where_the_caller_passes_none():
    w = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    pipe = gradhomog.pipeline("static(weights=[5, 1])")
    for losses, expected in (([w[0], w[1]], [5 / 6, 1 / 6]), ([None, w[1]], [0, 1 / 3]), ([w[0]], [1, 0])):
        w.grad = None
        gradhomog.backward(losses, pipe, parameters=[w])
        torch.testing.assert_close(w.grad, torch.tensor(expected, dtype=torch.float64))


def test_later_methods_read_the_weighted_losses_of_absent_tasks():
    text = "static(weights={'a': 100, '*': 1}) + scale_invariant"
    pipe = trained(text)
    found, whole = take(loaded(pipe, text), "b").weights, take(loaded(pipe, text), TASKS).weights
    torch.testing.assert_close(found, whole[1:2], rtol=1e-12, atol=0)


@pytest.mark.parametrize("text", ["pcgrad", "mgda", "graddrop", "reweight", "uw"])
def test_steps_of_one_task_in_which_a_method_has_no_effect_warn_once(text):
    pipe = gradhomog.pipeline(text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(25):
            take(pipe, "a")
    (found,) = caught
    assert found.category is OneTaskWarning
    assert str(found.message).startswith(f"{text} had no effect in the last 10 steps, because each had one task.")


@pytest.mark.parametrize("text", ["none", "tracked", "static(weights={'a': 5, '*': 1})", "moco"])
def test_methods_that_act_on_one_task_do_not_warn(text):
    pipe = gradhomog.pipeline(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OneTaskWarning)
        for step in range(30):
            take(pipe, TASKS[step % 3] if step > 2 else TASKS)


def test_an_absent_name_counts_once_and_not_if_another_task_of_this_name_is_present():
    w = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    pipe = gradhomog.pipeline("static(weights={'a': 5, 'b': 1})")
    gradhomog.backward([w[0], w[1], None], pipe, parameters=[w], domains=["a", "b", "b"])
    torch.testing.assert_close(w.grad, torch.tensor([5 / 6, 1 / 6], dtype=torch.float64))


def test_a_mixing_matrix_from_losses_is_not_changed():
    class Swap(gradhomog.Homogenizer):
        needs = frozenset({"losses"})

        def mix(self, step):
            return torch.ones(step.tasks, step.tasks, dtype=torch.float64) / step.tasks

    pipe = gradhomog.pipeline([Swap()])
    assert take(pipe, "ab").weights.tolist() == [1, 1]
    assert take(pipe, "a").weights.tolist() == [1]


def test_equal_weights_of_known_tasks_are_no_missing_effect():
    pipe = gradhomog.pipeline("uw")
    with warnings.catch_warnings():
        warnings.simplefilter("error", OneTaskWarning)
        for step in range(30):
            take(pipe, TASKS[step % 2], {"a": 1.0, "b": 1.0})
