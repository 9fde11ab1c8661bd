"""Options of learners and fields of Execution: invalid values, FewShotLearner, and function calls per step."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torchopt
from torch import nn

import gradhomog
from gradhomog import OptionError, TaskBatch
from gradhomog_adapters import Execution, FewShotLearner
from gradhomog_adapters.maml import MAML
from tests.adapters import checks
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


@pytest.mark.parametrize(("engine", "most_files", "most_calls"), [("loop", 20, 204), ("vmap", 20, 107)])
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


DAMPENED = torchopt.sgd(lr=0.1, momentum=0.9, dampening=0.5)  # stores outside of its state which step was the first

INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("maml", {"inner": "adagard"}, "`inner` must be one of"),
    ("maml", {"inner": 3}, "`inner` must be a name"),
    ("maml", {"inner": torch.optim.SGD}, "`inner` must be a name"),
    ("maml", {"inner": torchopt.MetaSGD}, "`inner` must be a name"),
    ("maml", {"inner": DAMPENED}, "given as a function"),
    ("maml", {"inner_lr": 0.0}, "`inner_lr` must be a number > 0"),
    ("maml", {"inner_steps": -1}, "`inner_steps` must be an integer ≥ 0; got -1"),
    ("maml", {"adapt": "body.*"}, r"`adapt` must match.*'body.\*' matches none of encoder.0.weight"),
    ("maml", {"adapt": []}, "`adapt` must contain at least one pattern"),
    ("maml", {"recompute": True, "engine": "vmap"}, "one task after the other"),
    ("maml", {"recompute": True, "compile": True}, "one task after the other"),
    ("maml", {"recompute": True, "inner": lambda: DAMPENED}, "stores which step was the first"),
    ("boil", {"adapt": "body.*"}, r"`adapt` must match.*'body\.\*' matches none of encoder\.0\.weight"),
    ("alfa", {"inner_weight_decay": -1.0}, "`inner_weight_decay` must be a number ≥ 0; got -1.0"),
    ("cavia", {"context": 0}, "`context` must be an integer ≥ 1; got 0"),
    *(
        ("meta_sgd", {"rates": rates}, r"`rates` must be a number( or a list|, or two in increasing order)")
        for rates in (-0.1, (0.2, 0.1), float("nan"), [0.1], ())
    ),
    ("sharp_maml", {"outer_radius": -1}, "`outer_radius` must be a number ≥ 0; got -1"),
    ("sharp_maml", {"inner_radius": -1}, "`inner_radius` must be a number ≥ 0; got -1"),
    ("mamlpp", {"inner": torchopt.sgd(lr=0.1)}, "`inner` must be a name if rates are learned"),
    ("mamlpp", {"adapt": "encoder.1.*"}, "`adapt` must match more than scales and shifts"),
    ("imaml", {"proximal": 0.0}, "`proximal` must be a number > 0"),
    ("imaml", {"cg_steps": 0}, "`cg_steps` must be an integer ≥ 1; got 0"),
    ("imaml", {"damping": -0.1}, "`damping` must be a number ≥ 0"),
    ("imaml", {"max_norm_ratio": 0.5}, "`max_norm_ratio` must be a number ≥ 1 and ≤ inf"),
    ("reptile", {"inner": torchopt.sgd(lr=0.1)}, "`scale` must be given if `inner` is an object"),
    ("reptile", {"scale": 0.0}, "`scale` must be a number > 0"),
    ("reptile", {"inner_batch": 0}, "`inner_batch` must be an integer ≥ 1"),
    ("reptile", {"inner_batch": 2, "seed": -1}, "`seed` must be an integer ≥ 0"),
    ("reptile", {"keep_state": True, "engine": "vmap"}, "`keep_state` processes one task after the other"),
    ("reptile", {"keep_state": True, "compile": True}, "`keep_state` processes one task after the other"),
    (
        "reptile", {"inner": lambda: DAMPENED, "scale": 0.1, "keep_state": True},
        "`keep_state` requires an inner optimizer without hidden state",
    ),
    ("metaoptnet", {"regularization": 0.0}, "`regularization` must be a number > 0"),
    ("metaoptnet", {"scale": 0.0}, "`scale` must be a finite number other than 0"),
    ("relationnet", {"hidden": 0}, "`hidden` must be an integer ≥ 1"),
    ("relationnet", {"maps": True}, r"`maps` requires an encoder that returns maps.*\[4\] according to the head"),
    ("relationnet", {"input_shape": [2]}, r"`input_shape` must be the shape of one input.*does not accept \[2\]"),
    ("relationnet", {"input_shape": [0]}, "`input_shape` must contain positive integers"),
    ("relationnet_ata", {"ascent_steps": -1}, "`ascent_steps` must be an integer ≥ 0; got -1"),
    ("relationnet_ata", {"probability": 1.5}, r"`probability` must be a number ≥ 0 and ≤ 1; got 1.5"),
    ("baseline", {"classes": 0}, "`classes` must be an integer ≥ 1 or none; got 0"),
    ("baseline", {"test_epochs": -1}, "`test_epochs` must be an integer ≥ 0"),
    ("baseline_pp", {"test_batch": 0}, "`test_batch` must be an integer ≥ 1"),
    ("baseline_pp", {"scale": -1.0}, "`scale` must be a number > 0"),
    ("meta_transfer", {"pretrain_steps": -1}, "`pretrain_steps` must be an integer ≥ 0"),
    ("meta_transfer", {"pretrain_steps": 1, "classes": 0}, "`classes` must be an integer ≥ 1 or none; got 0"),
    ("skd", {"generation0_steps": -1}, "`generation0_steps` must be an integer ≥ 0"),
    ("skd", {"rotation_weight": -1.0}, "`rotation_weight` must be a number ≥ 0; got -1.0"),
    ("skd", {"temperature": 0}, "`temperature` must be a number > 0; got 0"),
    ("skd", {"regularization": 0}, "`regularization` must be a number > 0; got 0"),
    ("skd", {"classes": 0}, "`classes` must be an integer ≥ 1 or none; got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "message"), INVALID)
def test_invalid_options_raise(name, options, message):
    pair = checks.image_networks(flatten=True) if name in ("meta_transfer", "skd") else networks(norm=name == "mamlpp")
    with pytest.raises(OptionError, match=message):
        gradhomog.learner(name, *pair, **options)


def test_options_that_a_subclass_passes_on_are_validated():
    class Subclass(MAML):
        def __init__(self, *args, **keywords):
            super().__init__(*args, **keywords)

    with pytest.raises(OptionError, match="`inner_steps` must be an integer ≥ 0; got -1"):
        Subclass(*networks(), inner_steps=-1)


def test_a_network_without_parameters_raises():
    with pytest.raises(OptionError, match=r"`encoder` must be a torch\.nn\.Module; got str"):
        MAML("encoder", nn.Linear(2, 2))
    with pytest.raises(OptionError, match="at least one parameter"):
        MAML(nn.Identity(), nn.Identity())
