"""Options of learners and fields of Execution: invalid values, FewShotLearner, and function calls per step."""

import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torchopt
from torch import nn

import gradhomog
from gradhomog import OptionError, TaskBatch
from gradhomog.registry import installed
from gradhomog.registry.options import describe, option_parameters
from gradhomog_adapters import Execution, FewShotLearner
from gradhomog_adapters.maml import MAML
from tests.adapters.checks import networks, tasks

ROOT = str(Path(__file__).parents[2])
LEARNERS = [name for name in gradhomog.available("learners") if name != "skd"]  # it rotates images


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_accepts_the_fields(name):
    learner = gradhomog.learner(name, *networks(True), engine="vmap", norm="support")
    assert learner.execution == Execution(engine="vmap", norm="support")


def test_the_printed_options_state_the_constant_that_the_named_adam_has():
    specs = [installed().load("learners", name)[1] for name in LEARNERS]
    with_inner = [spec for spec in specs if "inner" in option_parameters(spec)]
    assert len(with_inner) >= 10
    for spec in with_inner:
        (printed,) = [line for line in describe(spec) if line.startswith("inner=")]
        assert printed.endswith("adam and adamw have eps_root=1e-08)")


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


@pytest.mark.parametrize(("engine", "most_files", "most_calls"), [("loop", 20, 205), ("vmap", 20, 108)])
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


def test_a_network_without_parameters_or_that_was_frozen_completely_raises():
    with pytest.raises(OptionError, match=r"`encoder` must be a torch\.nn\.Module; got str"):
        MAML("encoder", nn.Linear(2, 2))
    with pytest.raises(OptionError, match="at least one parameter"):
        MAML(nn.Identity(), nn.Identity())
    learner = MAML(*networks())
    for part in (learner.encoder, learner.head):
        part.requires_grad_(False)
    with pytest.raises(OptionError, match="no parameter of encoder and head requires grad; at least one must be"):
        learner.rows(tasks())


def test_the_default_number_of_test_steps_is_that_of_training():
    task, learner = tasks()[0], MAML(*networks(), inner_steps=5)
    assert learner.support_at_meta_test(task.support_x, task.support_y).steps == 5


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
    ("maml", {"adapt": "body.*"}, r"`adapt` must match.*'body.\*' matches none of encoder.0.weight"),
    ("maml", {"adapt": []}, "`adapt` must contain at least one pattern"),
    ("maml", {"recompute": True, "engine": "vmap"}, "one task after the other"),
    ("maml", {"recompute": True, "compile": True}, "one task after the other"),
    ("maml", {"recompute": True, "inner": lambda: DAMPENED}, "stores which step was the first"),
    *(
        ("meta_sgd", {"rates": rates}, r"`rates` must be a number( or a list|, or two in increasing order)")
        for rates in (-0.1, (0.2, 0.1), float("nan"), [0.1], ())
    ),
    ("mamlpp", {"inner": torchopt.sgd(lr=0.1)}, "`inner` must be a name if rates are learned"),
    ("mamlpp", {"adapt": "encoder.1.*"}, "`adapt` must match more than scales and shifts"),
    ("reptile", {"inner": torchopt.sgd(lr=0.1)}, "`scale` must be given if `inner` is an object"),
    ("reptile", {"keep_state": True, "engine": "vmap"}, "`keep_state` processes one task after the other"),
    ("reptile", {"keep_state": True, "compile": True}, "`keep_state` processes one task after the other"),
    (
        "reptile", {"inner": lambda: DAMPENED, "scale": 0.1, "keep_state": True},
        "`keep_state` requires an inner optimizer without hidden state",
    ),
    ("metaoptnet", {"scale": 0.0}, "`scale` must be a finite number other than 0"),
    ("relationnet", {"maps": True}, r"`maps` requires an encoder that returns maps.*\[4\] according to the head"),
    ("relationnet", {"input_shape": [2]}, r"`input_shape` must be the shape of one input.*does not accept \[2\]"),
    ("relationnet", {"input_shape": [0]}, "`input_shape` must contain positive integers"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "message"), INVALID)
def test_invalid_options_raise(name, options, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.learner(name, *networks(norm=name == "mamlpp"), **options)


BEYOND = {"ge": lambda bound: bound - 1, "gt": lambda bound: bound, "le": lambda bound: bound + 1}
"""Values beyond a bound, by its kind."""


def bounds(annotation):
    """Kinds and values of the bounds in an annotation, such as `Annotated[int, Ge(1)] | None`."""
    found = [(kind, bound) for bound in getattr(annotation, "__metadata__", ()) for kind in BEYOND]
    found = [(kind, getattr(bound, kind, None)) for kind, bound in found]
    return [*found, *(pair for part in get_args(annotation) for pair in bounds(part))]


@pytest.mark.parametrize("name", [name for name in gradhomog.available("learners") if name != "protonet"])
def test_values_beyond_the_bounds_of_an_option_raise_with_its_name(name):
    tested = 0
    for option, parameter in option_parameters(installed().load("learners", name)[1]).items():
        for kind, bound in bounds(parameter.annotation):
            if bound is not None and math.isfinite(bound):
                with pytest.raises(OptionError, match=f"`{option}` must "):
                    gradhomog.learner(name, *networks(True), **{option: BEYOND[kind](bound)})
                tested += 1
    assert tested


def test_options_that_a_subclass_passes_on_are_validated():
    class Subclass(MAML):
        def __init__(self, *args, **keywords):
            super().__init__(*args, **keywords)

    with pytest.raises(OptionError, match="`inner_steps` must be an integer ≥ 0; got -1"):
        Subclass(*networks(), inner_steps=-1)
