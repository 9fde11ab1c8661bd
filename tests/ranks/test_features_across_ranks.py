"""Homogenizers that read features or residuals take the step of one process, across ranks with parts of the batch."""

import re

import pytest

from tests.ranks import feature_cases as cases
from tests.ranks.comparison import assert_steps_of_one_process

pytestmark = pytest.mark.slow_after_first

LEVEL = ["mgda", "none", "pcgrad", "upgrad", "gradnorm", "static(weights=[1, 2, 5]) + imtl_g"]


@pytest.mark.parametrize(
    ("text", "kind", "sizes", "gather"),
    [
        *((text, "level", [6, 1, 5], False) for text in LEVEL),
        *((text, "level", [6, 1, 5], True) for text in ("graddrop", "moco", "excess_mtl", "db_mtl", "sand_mask")),
        ("mgda", "level by loss", [6, 6], False),
        *((text, "views", [4, 1, 7], False) for text in ("rotograd", "rotate", "rotograd + upgrad")),
        ("mgda(on='features')", "features", [4, 1, 7], False),
        ("ntk", "residuals", [9, 3], False),
        ("balancer(on='features', average=0.5, scale='paper')", "features", [4, 1, 7], False),
        *((text, "measure", [4, 1, 7], False) for text in ("balancer", "peakscale(warmup=2)", "mgda")),
    ],
)
def test_three_steps_with_features_or_residuals_are_those_of_one_process(processes, text, kind, sizes, gather):
    assert_steps_of_one_process(processes, cases.steps, text, sizes, kind, gather)


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
        ("measured tensor", "OptionError: across ranks `measure` must be a glob pattern", "OptionError: across ranks"),
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
