"""Homogenizers that raise, return what cannot be used, or write to what they are shown, in each stage."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gradhomog
from gradhomog import Homogenizer, OptionError, PluginRunError
from tests.hostile.plugins import HERE, assert_blamed, install

SIGNATURES = {
    "attach": "self, encoder",
    "begin": "self, key, part",
    "transform": "self, features, keys",
    "mix": "self, evidence",
    "rows": "self, jacobian",
    "update": "self, evidence",
    "measured": "self",
}


@pytest.mark.parametrize("body", ["raise ValueError('out of ideas')", "sys.exit('out of ideas')"])
@pytest.mark.parametrize("stage", SIGNATURES)
def test_one_that_raises_is_told_with_stage_and_place_and_leaves_everything_as_it_was(fail, stage, body):
    message = fail(f"def {stage}({SIGNATURES[stage]}): {body}")
    assert_blamed(message, f"raised in `{stage}`: ", "out of ideas", "bad_dist.py:5; gradhomog ")


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (
            "def attach(self, encoder): return encoder.register_forward_hook(lambda module, given, out: out / None)",
            "raised in what its `attach` attached: TypeError",
        ),
        (
            """
            def attach(self, encoder):
                yield encoder.register_forward_hook(lambda module, given, out: 2 * out)
                raise ValueError("after the first")
            """,
            "raised in `attach`: ValueError: after the first",
        ),
        (
            """
            def attach(self, encoder):
                return [encoder.register_forward_hook(lambda module, given, out: 2 * out), "no handle"]
            """,
            "must return from `attach` handles with a method `remove`; got str",
        ),
        (
            """
            def attach(self, encoder):
                handle = encoder.register_forward_hook(lambda module, given, out: 2 * out)
                return [handle, self]
            def remove(self):
                raise ValueError("glued")
            """,
            "raised in `remove` of what `attach` returned: ValueError: glued",
        ),
    ],
    ids=["hook", "half attached", "no handle", "remove"],
)
def test_what_was_attached_is_removed_whatever_goes_wrong_with_it(fail, methods, words):
    assert_blamed(fail(methods), words)


def test_an_error_of_the_network_is_not_blamed_on_what_is_attached(gradhomog_install):
    attach = "def attach(self, encoder): return encoder.register_forward_hook(lambda module, given, out: out)"
    install(gradhomog_install, attach)
    encoder = torch.nn.Linear(3, 4)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), gradhomog.pipeline("bad").attached(encoder):
        encoder(torch.ones(2, 5))


def test_words_of_ours_that_a_plugin_raises_are_told_with_its_name(gradhomog_install):
    install(gradhomog_install, "def mix(self, evidence): raise gradhomog.OptionError('`warm_up` must be positive.')")
    with pytest.raises(OptionError) as raised:
        gradhomog.pipeline("bad").combine(torch.eye(2))
    assert str(raised.value) == f"{HERE}, in `mix`: `warm_up` must be positive."


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("carried = ('momentum',)", "raised in `state_dict`: AttributeError: 'Bad' object has no attribute 'momentum'"),
        ("def load_state_dict(self, state): state['momentum']", "raised in `load_state_dict`: KeyError: 'momentum'"),
    ],
)
def test_one_whose_state_cannot_be_saved_or_loaded_is_told(gradhomog_install, methods, words):
    install(gradhomog_install, methods)
    pipe = gradhomog.pipeline("bad")
    with pytest.raises(PluginRunError) as raised:
        pipe.load_state_dict(pipe.state_dict())
    assert_blamed(str(raised.value), words)


# -- what is returned ------------------------------------------------------------------------------------------------

WEIGHTS = "weights of shape [2] or a matrix [2, 2]"
ROWS = "rows of the structure, shapes, dtypes and device that it was given"
FEATURES = "features of shape (1, 5, 4), torch.float32 on cpu"

WRONG = {
    "mix": {
        "None": (WEIGHTS, "got NoneType"),
        "[1.0, 1.0]": (WEIGHTS, "got list"),
        "numpy.ones(2)": (WEIGHTS, "got ndarray"),
        "torch.ones(3)": (WEIGHTS, "got a tensor (3,) torch.float32 on cpu"),
        "torch.ones(2, 1)": (WEIGHTS, "got a tensor (2, 1)"),
        "torch.ones(2, dtype=torch.complex64)": (WEIGHTS, "torch.complex64"),
        "torch.ones(2, device='meta')": (WEIGHTS, "on meta"),
        "torch.eye(2).to_sparse()": (WEIGHTS, "got a tensor (2, 2)"),
        "torch.tensor([1.0, float('nan')])": ("returned NaN or infinity from `mix`: [1.0, nan]",),
        "torch.tensor([1.0, float('inf')])": ("returned NaN or infinity from `mix`: [1.0, inf]",),
        "torch.ones(2, requires_grad=True)": ("a tensor outside the graph", "with a graph"),
    },
    "rows": {
        "None": ("rows by the names that it was given, encoder.weight, encoder.bias", "got NoneType"),
        "list(jacobian.values())": ("rows by the names that it was given", "got list"),
        "{'encoder.weight': jacobian['encoder.weight']}": ("rows by the names that it was given", "got a dict of"),
        "{n: v[:1] for n, v in jacobian.items()}": (ROWS, "'head.bias': a tensor (1, 1)"),
        "{n: v.double() for n, v in jacobian.items()}": (ROWS, "torch.float64"),
        "{n: v.numpy() for n, v in jacobian.items()}": (ROWS, "'head.bias': ndarray"),
        "{n: v.to('meta') for n, v in jacobian.items()}": (ROWS, "on meta"),
        "{n: v / 0 for n, v in jacobian.items()}": ("returned NaN or infinity from `rows`",),
        "{n: v.requires_grad_() for n, v in jacobian.items()}": ("rows outside the graph", "with a graph"),
    },
    "transform": {
        "None": (FEATURES, "got NoneType"),
        "features.detach().numpy()": (FEATURES, "got ndarray"),
        "features[0]": (FEATURES, "got a tensor (5, 4)"),
        "features.double()": (FEATURES, "torch.float64"),
        "features.to('meta')": (FEATURES, "on meta"),
        "features.detach()": ("features that depend on those it was given", "got a tensor (1, 5, 4)"),
        "features / 0": ("returned NaN or infinity from `transform`",),
    },
    "measured": {
        "None": ("numbers, or lists of numbers, by name", "got NoneType"),
        "{'angle': torch.ones(2)}": ("numbers, or lists of numbers, by name", "'angle': a tensor (2,)"),
        "{1: 2.0}": ("numbers, or lists of numbers, by name", "1: float"),
        "{'angle': ['wide']}": ("numbers, or lists of numbers, by name", "'angle': list"),
    },
}


@pytest.mark.parametrize(
    ("stage", "result", "words"), [(stage, *case) for stage, cases in WRONG.items() for case in cases.items()]
)
def test_what_cannot_be_used_is_refused_with_what_was_expected(fail, stage, result, words):
    assert_blamed(fail(f"def {stage}({SIGNATURES[stage]}): return {result}"), *words)


def test_nan_of_a_transform_is_told_where_such_tasks_are_dropped_too(gradhomog_install):
    install(gradhomog_install, "def transform(self, features, keys): return features / (features - features[:1])")
    pipe = gradhomog.pipeline("bad", nonfinite="drop")
    features = torch.arange(8.0).reshape(2, 2, 2)
    taps = [features, features / (features - features[:1])]
    rows = torch.tensor([[float("nan"), 1.0], [0.0, 1.0]])
    with pytest.raises(PluginRunError) as raised:
        pipe.homogenize(rows, features=taps, feature_cotangents=taps)
    assert_blamed(str(raised.value), "returned NaN or infinity from `transform`")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("None", "got NoneType"),
        ("[inputs]", "got list"),
        ("{'layer': inputs[:1]}", "'layer': a tensor (1, 2)"),
        ("{'layer': inputs.sum()}", "'layer': a tensor ()"),
        ("{'layer': inputs.numpy()}", "'layer': ndarray"),
    ],
)
def test_maps_that_cannot_be_drawn_are_refused(gradhomog_install, result, words):
    install(gradhomog_install, f"def maps(self, encoder, inputs): return {result}")
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline("bad").members[0].maps(torch.nn.Identity(), torch.ones(3, 2))
    assert_blamed(str(raised.value), "must return from `maps` one map for each of 3 inputs", words)


def test_maps_that_raise_are_told(gradhomog_install):
    install(gradhomog_install, "def maps(self, encoder, inputs): return 1 / 0")
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline("bad").members[0].maps(torch.nn.Identity(), torch.ones(3, 2))
    assert_blamed(str(raised.value), "raised in `maps`: ZeroDivisionError")


@pytest.mark.parametrize("value", [1, 0.5, True, [1, 2.0], (), np.float32(3), np.int64(4), float("nan")])
def test_every_number_can_be_measured(value):
    class Told(Homogenizer):
        def measured(self):
            return {"value": value}

    told = gradhomog.pipeline([Told()]).homogenize(torch.eye(2)).measured
    assert repr(told) == repr({"Told": {"value": value}})


# -- writing to what is shared ---------------------------------------------------------------------------------------

CHANGED = {
    "transform": {
        "features.detach().mul_(2); return features": "features",
        "features.detach()[0, 0].zero_(); return features": "features",
    },
    "mix": {
        "evidence.losses.add_(1); return torch.ones(2)": "losses",
        "evidence.rows['head.bias'].zero_(); return torch.ones(2)": "rows",
        "evidence.features.clamp_(0); return torch.ones(2)": "features",
        "evidence.feature_cotangents.neg_(); return torch.ones(2)": "feature_cotangents",
        "evidence.targets.zero_(); return torch.ones(2)": "targets",
    },
    "rows": {
        "jacobian['head.weight'].mul_(2); return jacobian": "rows",
        "jacobian['head.weight'].detach().view(-1)[0] = 1; return {n: v.clone() for n, v in jacobian.items()}": "rows",
    },
    "update": {
        "evidence.losses.div_(evidence.losses.sum())": "losses",
        "[value.zero_() for value in evidence.rows.values()]": "rows",
        "evidence.feature_cotangents[0] = 0": "feature_cotangents",
    },
}


@pytest.mark.parametrize(
    ("stage", "body", "name"), [(stage, *case) for stage, cases in CHANGED.items() for case in cases.items()]
)
def test_one_that_writes_to_what_it_is_shown_is_refused(fail, stage, body, name):
    words = f"changed `{name}` in place in `{stage}`", f"work on a copy, {name}.clone()"
    assert_blamed(fail(f"def {stage}({SIGNATURES[stage]}): {body}"), *words)


def test_one_that_writes_to_rows_that_were_mixed_before_is_refused(fail):
    # The rows are formed only when this stage reads them.
    body = "evidence.rows['head.bias'].zero_(); return torch.ones(2)"
    message = fail(f"def mix(self, evidence): {body}", text="static(weights=[1, 2]) + bad")
    assert_blamed(message, "changed `rows` in place in `mix`")


def test_maps_that_write_to_their_inputs_are_refused(gradhomog_install):
    install(gradhomog_install, "def maps(self, encoder, inputs): return {'layer': inputs.zero_()}")
    with pytest.raises(PluginRunError) as raised:
        gradhomog.pipeline("bad").members[0].maps(torch.nn.Identity(), torch.ones(3, 2))
    assert_blamed(str(raised.value), "changed `inputs` in place in `maps`")


def test_what_is_computed_for_one_may_be_written_to_and_the_next_does_not_see_it():
    class Scribbling(Homogenizer):
        def mix(self, evidence):
            evidence.gramian().zero_()
            evidence.norms().zero_()
            return torch.ones(evidence.tasks)

    rows = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    expected = gradhomog.pipeline("pcgrad").combine(rows)
    assert torch.equal(gradhomog.pipeline([Scribbling(), "pcgrad"]).combine(rows), expected)


def test_reading_forming_and_copying_rows_is_no_writing():
    class Reading(Homogenizer):
        def mix(self, evidence):
            return (2 * evidence.rows.clone().mul_(2)).norm(dim=1) * 0 + 1

        def rows(self, jacobian):
            return jacobian

    rows = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    pipe = ["static(weights=[1, 3])", Reading()]
    assert torch.equal(gradhomog.pipeline(pipe).combine(rows), gradhomog.pipeline(pipe[:1]).combine(rows))


def test_tensors_without_a_version_counter_are_taken_as_they_are():
    with torch.inference_mode():
        rows = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
        losses = torch.ones(2, dtype=torch.float64)
        direction = gradhomog.pipeline("pcgrad + gradnorm").combine(rows, losses=losses)
    assert direction.tolist() == [0.25, 0.75]
