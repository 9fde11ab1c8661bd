"""Rows with wrong loss weights: for which methods, and for which task."""

import pytest

from gradhomog.experiments.execution.misscale import with_misscaled_losses
from gradhomog.experiments.run_file.schema import load

METHODS = ["none", "pcgrad", "tracked", "static | static(weights='random')"]


@pytest.mark.parametrize(
    ("settings", "task"),
    [
        ({"problem": {"name": "landscape"}}, "f1"),
        (
            {
                "domains": {"train": ["functions:step", "functions:line"], "test": ["functions:line"]},
                "network": {"name": "mlp"},
            },
            "functions:step",
        ),
    ],
    ids=["problem", "episodes"],
)
def test_methods_that_are_not_tuned_and_act_on_all_rows_have_a_row_for_each_wrong_weight(settings, task):
    config = load(defaults={**settings, "homogenizers": METHODS})
    weighted = [f'static(weights={{"*": 1.0, "{task}": {factor}}})' for factor in (0.01, 100.0)]
    expected = [*METHODS, *weighted, *(f"{text} + pcgrad" for text in weighted)]
    assert with_misscaled_losses(config).homogenizers == expected
