"""The fields of `Execution` as keywords, for every learner; `FewShotLearner`; number of function calls per step."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import OptionError, TaskBatch
from gradhomog.registry import installed
from gradhomog_adapters import Execution, FewShotLearner
from gradhomog_adapters.anil import anil
from gradhomog_adapters.fomaml import fomaml
from gradhomog_adapters.maml import MAML
from gradhomog_adapters.mamlpp import MAMLPP
from tests.adapters.checks import networks, tasks

ROOT = str(Path(__file__).parents[2])
LEARNERS = [name for name in gradhomog.available("learners") if name != "skd"]  # it rotates images


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_accepts_the_fields(name):
    learner = gradhomog.learner(name, *networks(True), engine="vmap", norm="support")
    assert learner.execution == Execution(engine="vmap", norm="support")


def test_an_object_validates_its_fields():
    with pytest.raises(OptionError, match=r"Execution: `autocast` must be \"bfloat16\" or none; got 'float16'"):
        Execution(autocast="float16")
    with pytest.raises(OptionError, match=r"`norm` must be one of \"batch\", \"support\", \"frozen\"; got 'x'"):
        Execution("vmap", norm="x")


@pytest.mark.parametrize("make", [MAML, anil, fomaml, MAMLPP])
def test_an_unknown_keyword_raises(make):
    with pytest.raises(TypeError, match="unexpected keyword argument 'engines'"):
        make(*networks(), engines="vmap")


class OneStep(FewShotLearner):
    """Gradient descent as a custom learner."""

    def adapt(self, parameters, support):
        gradients = support.gradient(support.loss, parameters)
        return {name: parameters[name] - 0.1 * gradients[name] for name in parameters}


@pytest.mark.parametrize("execution", [{"engine": "loop"}, {"engine": "vmap"}, {"engine": "loop", "norm": "support"}])
def test_a_learner_with_only_adapt_has_the_rows_and_predictions_of_maml(execution):
    own = OneStep(*networks(True), **execution)
    maml = MAML(*networks(True), inner_lr=0.1, inner_steps=1, **execution)
    rows, expected = own.rows(tasks()).jacobian, maml.rows(tasks()).jacobian
    for name in expected:
        torch.testing.assert_close(rows[name], expected[name], rtol=1e-12, atol=1e-14)
    task = tasks()[0]
    inputs = task.support_x, task.support_y, task.query_x
    torch.testing.assert_close(own.predict(*inputs), maml.predict(*inputs), rtol=1e-12, atol=1e-14)


def test_a_module_that_encoder_and_head_share_is_adapted_in_both():
    # Regression test: the head kept the parameter from before the inner loop.
    torch.manual_seed(0)
    shared = nn.Linear(3, 3).double()
    learner = MAML(nn.Sequential(shared, nn.Tanh()), nn.Sequential(shared), inner_lr=0.1, inner_steps=1)
    task = tasks()[0]
    weight = shared.weight.detach().clone().requires_grad_()
    bias = shared.bias.detach().clone().requires_grad_()

    def outputs(x, w, b):
        return torch.tanh(x @ w.T + b) @ w.T + b

    loss = nn.functional.cross_entropy(outputs(task.support_x, weight, bias), task.support_y)
    by_weight, by_bias = torch.autograd.grad(loss, (weight, bias))
    expected = outputs(task.query_x, weight - 0.1 * by_weight, bias - 0.1 * by_bias).detach()
    torch.testing.assert_close(learner.predict(task.support_x, task.support_y, task.query_x), expected)


@pytest.mark.parametrize(("engine", "most_files", "most_calls"), [("loop", 22, 212), ("vmap", 22, 115)])
def test_one_step_calls_few_functions_of_this_repository(engine, most_files, most_calls):
    """Lambdas and comprehensions are not counted: Python inlines the latter from 3.12 on."""
    torch.manual_seed(0)
    learner = MAML(nn.Linear(1, 8), nn.Linear(8, 1), "none", inner_steps=2, engine=engine)
    x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    batch, outer = TaskBatch(x, x.sin(), x, x.sin()), torch.optim.SGD(learner.parameters(), 0.1)
    learner.step(batch, outer)
    calls: Counter[tuple[str, str]] = Counter()

    def count(frame, event, argument):
        name = frame.f_code.co_qualname
        if event == "call" and frame.f_code.co_filename.startswith(ROOT) and not name.endswith(">"):
            calls[frame.f_code.co_filename, name] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        learner.step(batch, outer)
    finally:
        sys.setprofile(before)
    calls = Counter({place: number for place, number in calls.items() if "/tests/" not in place[0]})
    assert len({path for path, _ in calls}) <= most_files
    assert sum(calls.values()) <= most_calls


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("imaml", "first_order"), ("mamlpp", "first_order"), ("fomaml", "first_order"), ("cavia", "adapt"),
        ("meta_sgd", "inner_lr"), ("alfa", "inner"),
    ],
)  # fmt: skip
def test_options_of_maml_that_a_learner_lacks_raise(name, option):
    _, spec = installed().load("learners", name)
    with pytest.raises(TypeError, match=rf"(unexpected|multiple values for) keyword argument '{option}'"):
        spec.factory(nn.Linear(3, 4), nn.Linear(4, 2), **{option: True})
    with pytest.raises(OptionError, match=f"no option '{option}'"):
        gradhomog.learner(name, nn.Linear(3, 4), nn.Linear(4, 2), **{option: True})


def test_a_network_that_was_frozen_completely_raises():
    encoder, head = nn.Linear(1, 4), nn.Linear(4, 1)
    learner, x = MAML(encoder, head), torch.zeros(3, 5, 1)
    encoder.requires_grad_(False)
    head.requires_grad_(False)
    with pytest.raises(
        OptionError, match="no parameter of encoder and head requires grad; at least one must be trainable"
    ):
        learner.rows(TaskBatch(x, x, x, x))


def test_the_default_number_of_test_steps_is_that_of_training():
    seen = []

    class Counts(FewShotLearner):
        inner_steps = 5

        def adapt(self, parameters, support):
            seen.append(support.steps)
            return parameters

    x = torch.zeros(4, 1)
    Counts(nn.Linear(1, 4), nn.Linear(4, 1)).predict(x, x, x)
    assert seen == [5]


def test_an_incompatible_state_does_not_change_the_learner():
    state = MAML(nn.Linear(1, 4), nn.Linear(4, 2)).state_dict()
    learner = MAML(nn.Linear(1, 4), nn.Linear(4, 3))
    before = {name: p.detach().clone() for name, p in learner.named_parameters().items()}
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        learner.load_state_dict(state)
    assert all(torch.equal(p, before[name]) for name, p in learner.named_parameters().items())
