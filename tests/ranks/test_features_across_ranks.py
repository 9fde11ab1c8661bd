"""Homogenizers that read features or residuals take the step of one process, across ranks with parts of the batch."""

from __future__ import annotations

import re

import pytest
import torch

from tests.ranks import feature_cases as cases


def assert_same_step(found, expected):
    torch.testing.assert_close(found[0]["gradients"], expected["gradients"], rtol=1e-9, atol=1e-12)
    for other in found[1:]:
        assert all(map(torch.equal, found[0]["gradients"], other["gradients"]))
    assert repr([one["state"] for one in found[1:]]) == repr([found[0]["state"]] * (len(found) - 1))


@pytest.mark.parametrize("text", ["none", "mgda", "pcgrad", "upgrad", "gradnorm", "static(weights=[1, 2, 5]) + imtl_g"])
def test_rows_of_features_stay_on_their_ranks(processes, text):
    (expected,) = processes(cases.steps, 1, text, "level", [12])
    assert_same_step(processes(cases.steps, 3, text, "level", [6, 1, 5]), expected)


@pytest.mark.parametrize("text", ["graddrop", "moco", "excess_mtl", "db_mtl", "sand_mask"])
def test_rows_of_features_are_gathered_for_methods_that_read_them(processes, text):
    (expected,) = processes(cases.steps, 1, text, "level", [12])
    assert_same_step(processes(cases.steps, 3, text, "level", [6, 1, 5], True), expected)


def test_a_scalar_loss_takes_the_same_step_at_the_level_of_features(processes):
    (expected,) = processes(cases.steps, 1, "mgda", "level", [12])
    assert_same_step(processes(cases.steps, 2, "mgda", "level by loss", [6, 6]), expected)


@pytest.mark.parametrize(
    ("text", "kind"),
    [("rotograd", "views"), ("rotate", "views"), ("rotograd + upgrad", "views"), ("mgda(on='features')", "features")],
)
def test_features_are_exchanged(processes, text, kind):
    (expected,) = processes(cases.steps, 1, text, kind, [12])
    assert_same_step(processes(cases.steps, 3, text, kind, [4, 1, 7]), expected)


def test_traces_of_residuals_are_averaged_like_losses(processes):
    (expected,) = processes(cases.steps, 1, "ntk", "residuals", [12])
    assert_same_step(processes(cases.steps, 2, "ntk", "residuals", [9, 3]), expected)


def test_at_the_level_of_features_only_gramians_and_one_gradient_are_sent(processes):
    parameters = 8 * (4 * 5 + 5 + 5 * 3 + 3 + 3 * 4)  # with the heads
    for sent in processes(cases.bytes_sent, 2, "upgrad", "level"):
        assert set(sent) == {"all_reduce", "all_gather"}
        assert sent["all_reduce"] <= parameters + 100
        assert sent["all_gather"] <= 600


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        ("absent", "OptionError: a homogenizer reads features, so every rank.*rank 0 does not", "OptionError: a homog"),
        ("other shapes", "OptionError: 'features'.*may differ in the batch only; .*are .12, 1, 3.", "are .12, 2, 3."),
        ("local", "OptionError: level='features' requires Ranks.'batch'", "OptionError: level='features'"),
        (
            "backward fails on rank 1",
            "RankError: rank 1 raised an error in a backward",
            "GradhomogError: this pass fails",
        ),
    ],
)
def test_an_error_ends_the_step_on_all_ranks_and_nothing_is_written(processes, case, first, second):
    found = processes(cases.message, 2, case)
    for text, expected in zip(found, (first, second), strict=True):
        assert re.search(expected, text, re.DOTALL), text
