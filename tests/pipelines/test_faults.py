"""Faulty members are told by name and stage; arguments that do not fit are refused."""

from __future__ import annotations

import pytest
import torch

import gradhomog
from gradhomog import DataError, OptionError, PluginRunError
from gradhomog.evidence import TaskKey
from tests.pipelines.members import ROWS, faulty


@pytest.mark.parametrize(
    ("stage", "function", "message"),
    [
        ("mix", lambda self, e: 1 / 0, r"Faulty raised in `mix`: ZeroDivisionError"),
        ("mix", lambda self, e: torch.ones(5), r"weights of shape \[2\] or a matrix \[2, 2\]; got a tensor \(5,\)"),
        ("mix", lambda self, e: [1.0, 1.0], r"got list"),
        ("mix", lambda self, e: torch.tensor([1.0, float("nan")]), r"NaN or infinity from `mix`"),
        ("mix", lambda self, e: torch.ones(2, requires_grad=True), r"with a graph"),
        ("rows", lambda self, j: j[:1], r"from `rows`.*got a tensor \(1, 3\)"),
        ("rows", lambda self, j: j.double(), r"float64"),
        ("update", lambda self, e: {}["x"], r"raised in `update`: KeyError"),
    ],
)
def test_a_faulty_stage_is_told_by_name_and_stage(stage, function, message):
    with pytest.raises(PluginRunError, match=message):
        gradhomog.pipeline([faulty(stage, function)]).combine(ROWS)


def test_a_transform_that_changes_the_shape_is_refused():
    with pytest.raises(
        PluginRunError, match=r"features of shape \(1, 4, 3\), torch.float32 on cpu; got a tensor \(1, 4\)"
    ):
        gradhomog.pipeline([faulty("transform", lambda self, z, keys: z[..., 0])]).transform(
            torch.ones(1, 4, 3), [TaskKey(0)]
        )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"losses": torch.ones(3)}, OptionError, r"`losses` must have shape \[2\].*got \(3,\)"),
        ({"domains": ["a"]}, OptionError, r"one domain for each of the 2 tasks"),
    ],
)
def test_arguments_that_do_not_fit_the_rows_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        gradhomog.pipeline("none").combine(ROWS, **arguments)


def test_missing_losses_are_asked_for_by_who_needs_them():
    with pytest.raises(OptionError, match=r"'gradnorm' of gradhomog .* needs the tasks' losses"):
        gradhomog.pipeline("gradnorm").combine(ROWS)


def test_losses_may_be_a_list_of_tensors_with_a_graph():
    weight = torch.tensor(2.0, requires_grad=True)
    losses = [weight * 1, weight * 2]
    assert torch.equal(gradhomog.pipeline("gradnorm").combine(ROWS, losses=losses), ROWS.mean(0))


def test_no_rows_are_refused():
    with pytest.raises(DataError):
        gradhomog.pipeline("none").combine(torch.ones(3))
