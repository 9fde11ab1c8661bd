"""Homogenizers that raise or return invalid values, in each stage."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import Homogenizer, Learner, OptionError, PluginRunError, TaskBatch
from tests.hostile.plugins import HERE, assert_blamed, install


class Setting:
    """Two regression tasks for a small network after one step, so that its optimizer has a state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.encoder, self.head = nn.Linear(3, 4), nn.Linear(4, 1)
        self.batch = TaskBatch(
            torch.randn(2, 5, 3), torch.randn(2, 5, 1), torch.randn(2, 5, 3), torch.randn(2, 5, 1), ("a", "b")
        )
        self.outer = torch.optim.Adam([*self.encoder.parameters(), *self.head.parameters()], lr=0.1)
        self.learner("none").step(self.batch, self.outer)

    def learner(self, text: str) -> Learner:
        return gradhomog.learner("maml", self.encoder, self.head, homogenizers=text, inner_steps=1)

    def state(self) -> str:
        """Return the state that a step changes, as text: parameters, their gradients, and the optimizer's state."""
        parameters = [*self.encoder.parameters(), *self.head.parameters()]
        return repr([parameters, [p.grad for p in parameters], self.outer.state_dict()])


@pytest.fixture
def fail(gradhomog_install):
    """Install `bad` with these methods, take a step of a learner with it, and return the error message.

    Assert that network, gradients, hooks, optimizer and the state of every homogenizer are unchanged.
    """

    def fail(
        methods: str, spec: str = "needs=gradhomog.registry.specs.STATISTICS", text: str = "gradnorm + bad"
    ) -> str:
        install(gradhomog_install, methods, spec)
        setting = Setting()
        learner = setting.learner(text)
        before, states = setting.state(), copy.deepcopy(learner.homogenizers.state_dict())
        with pytest.raises(PluginRunError) as raised:
            learner.step(setting.batch, setting.outer)
        assert setting.state() == before
        assert not any(module._forward_hooks for module in setting.encoder.modules())
        assert repr(learner.homogenizers.state_dict()) == repr(states)
        return str(raised.value)

    return fail


SIGNATURES = {
    "attach": "self, encoder",
    "begin": "self, key, part, generator",
    "transform": "self, features, keys",
    "mix": "self, step",
    "rows": "self, step",
    "update": "self, step",
    "measured": "self, step",
}


@pytest.mark.parametrize("body", ["raise ValueError('out of ideas')", "sys.exit('out of ideas')"])
@pytest.mark.parametrize("stage", SIGNATURES)
def test_an_error_names_stage_file_and_line_and_nothing_changes(fail, stage, body):
    message = fail(f"def {stage}({SIGNATURES[stage]}): {body}")
    assert_blamed(message, f"raised in `{stage}`: ", "out of ideas", "bad_dist.py:5; gradhomog ")


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (
            "def attach(self, encoder): return encoder.register_forward_hook(lambda module, given, out: out / None)",
            "raised in a hook that its `attach` registered: TypeError",
        ),
        (
            """
            def attach(self, encoder):
                yield encoder.register_forward_hook(lambda module, given, out: 2 * out)
                raise ValueError("after the first")
            """,
            "raised in `attach`: ValueError: after the first",
        ),
        ("def attach(self, encoder): return ['no handle']", "handles with a method `remove`; got str"),
        (
            """
            def attach(self, encoder):
                handle = encoder.register_forward_hook(lambda module, given, out: 2 * out)
                return [handle, self]
            def remove(self):
                raise ValueError("glued")
            """,
            "raised in `remove` of a handle from `attach`: ValueError: glued",
        ),
    ],
    ids=["hook", "half attached", "no handle", "remove"],
)
def test_hooks_are_removed_after_every_error_of_attach(fail, methods, words):
    assert_blamed(fail(methods), words)


def test_an_error_of_the_network_does_not_name_the_attached_plugin(gradhomog_install):
    attach = "def attach(self, encoder): return encoder.register_forward_hook(lambda module, given, out: out)"
    install(gradhomog_install, attach)
    encoder = torch.nn.Linear(3, 4)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), gradhomog.pipeline("bad").attached(encoder):
        encoder(torch.ones(2, 5))


def test_a_gradhomog_error_raised_by_a_plugin_gets_the_plugins_name(gradhomog_install):
    install(gradhomog_install, "def mix(self, step): raise gradhomog.OptionError('`warm_up` must be positive.')")
    with pytest.raises(OptionError) as raised:
        gradhomog.pipeline("bad").combine(torch.eye(2))
    assert str(raised.value) == f"{HERE}, in `mix`: `warm_up` must be positive."


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("state_names = ('momentum',)", "raised in `state_dict`: AttributeError: 'Bad' object has no attribute"),
        ("def load_state_dict(self, state): state['momentum']", "raised in `load_state_dict`: KeyError: 'momentum'"),
    ],
)
def test_a_homogenizer_whose_state_cannot_be_saved_or_loaded_is_named(gradhomog_install, methods, words):
    install(gradhomog_install, methods)
    pipe = gradhomog.pipeline("bad")
    with pytest.raises(PluginRunError) as raised:
        pipe.load_state_dict(pipe.state_dict())
    assert_blamed(str(raised.value), words)


# -- invalid results -------------------------------------------------------------------------------------------------

WEIGHTS = "weights of shape [2] or a matrix [2, 2]"
ROWS = "a Jacobian with the shapes, dtypes and device of step.jacobian"
CREATED = "a Jacobian, created by `map`, `replace` or `repeat` of step.jacobian"
FEATURES = "features of shape (1, 5, 4), torch.float32 on cpu"

WRONG = {
    "mix": {
        "None": (WEIGHTS, "got NoneType"),
        "torch.ones(3)": (WEIGHTS, "got a tensor (3,) torch.float32 on cpu"),
        "torch.ones(2, device='meta')": (WEIGHTS, "on meta"),
        "torch.eye(2).to_sparse()": (WEIGHTS, "got a tensor (2, 2)"),
        "torch.tensor([1.0, float('nan')])": ("returned NaN or infinity from `mix`: [1.0, nan]",),
        "torch.ones(2, requires_grad=True)": ("a tensor outside the graph", "with a graph"),
    },
    "rows": {
        "None": (CREATED, "got NoneType"),
        "step.jacobian.materialize()": (CREATED, "got a dict of"),
        "step.jacobian.select([0])": ("a Jacobian of 2 tasks with the blocks 'encoder.weight'", "of 1 tasks"),
        "gradhomog.as_jacobian(torch.ones(2, 3))": ("a Jacobian of 2 tasks with the blocks", "with blocks ''"),
        "step.jacobian.map(torch.Tensor.double)": (ROWS, "torch.float64"),
        "step.jacobian.map(torch.Tensor.numpy)": ("raised in `rows`", "AttributeError"),
        "step.jacobian.map(lambda v: v / 0)": ("returned NaN or infinity from `rows`",),
    },
    "update": {
        "None": ("a dict with new values of `state_names`", "got NoneType"),
        "{'momentum': 1.0}": ("only keys in `state_names` (empty), which 'momentum' is not",),
    },
    "transform": {
        "None": (FEATURES, "got NoneType"),
        "features.detach().numpy()": (FEATURES, "got ndarray"),
        "features.double()": (FEATURES, "torch.float64"),
        "features.detach()": ("features with a graph to its input", "got a tensor (1, 5, 4)"),
        "features / 0": ("returned NaN or infinity from `transform`",),
    },
    "measured": {
        "None": ("numbers, or lists of numbers, by name", "got NoneType"),
        "{'angle': torch.ones(2)}": ("numbers, or lists of numbers, by name", "'angle': a tensor (2,)"),
    },
}


@pytest.mark.parametrize(
    ("stage", "result", "words"), [(stage, *case) for stage, cases in WRONG.items() for case in cases.items()]
)
def test_an_invalid_result_raises_with_the_requirement(fail, stage, result, words):
    assert_blamed(fail(f"def {stage}({SIGNATURES[stage]}): return {result}"), *words)


def test_nan_from_a_transform_raises_even_if_tasks_with_nan_are_dropped(gradhomog_install):
    install(gradhomog_install, "def transform(self, features, keys): return features / (features - features[:1])")
    pipe = gradhomog.pipeline("bad", nonfinite="drop")
    features = torch.arange(8.0).reshape(2, 2, 2)
    taps = [features, features / (features - features[:1])]
    rows = torch.tensor([[float("nan"), 1.0], [0.0, 1.0]])
    with pytest.raises(PluginRunError) as raised:
        pipe.homogenize(rows, features=taps, feature_grads=taps)
    assert_blamed(str(raised.value), "returned NaN or infinity from `transform`")


MAPS = "must return from `maps` one map for each of 3 inputs, as tensors by name"


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("1 / 0", "raised in `maps`: ZeroDivisionError"), ("[inputs]", MAPS + "; got list"),
        ("{'layer': inputs[:1]}", "'layer': a tensor (1, 2)"), ("{'layer': inputs.numpy()}", "'layer': ndarray"),
    ],
)  # fmt: skip
def test_invalid_maps_raise(gradhomog_install, result, words):
    install(gradhomog_install, f"def maps(self, encoder, inputs): return {result}")
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline("bad").members[0].call("maps", torch.nn.Identity(), torch.ones(3, 2))
    assert_blamed(str(raised.value), words)


@pytest.mark.parametrize("value", [1, 0.5, True, [1, 2.0], (), np.float32(3), np.int64(4), float("nan")])
def test_every_number_can_be_measured(value):
    class Measuring(Homogenizer):
        def measured(self, step):
            return {"value": value}

    found = gradhomog.pipeline([Measuring()]).homogenize(torch.eye(2)).measured
    assert repr(found) == repr({"Measuring": {"value": value}})
