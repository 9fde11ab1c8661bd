"""The check `imports_cleanly` on an installed learner."""

from __future__ import annotations

import pytest

from gradhomog.global_state import restore_generators
from gradhomog.testing import check_learner

pytestmark = pytest.mark.slow

PLUGIN = """
import torch
from gradhomog import LearnerSpec, hookimpl
from tests.testing.learners.good import OneStep

torch.manual_seed(0)

@hookimpl
def gradhomog_learner():
    return LearnerSpec(factory=OneStep, summary="one step", traits={"exact_rows"})
"""


def test_an_import_that_seeds_the_global_generator_is_found(gradhomog_install):
    name = gradhomog_install("seeded-steps", PLUGIN, kind="learners")
    with restore_generators():
        report = check_learner(name, only="imports_cleanly")  # also imports the plugin in this process
    assert report.subject == "learner seeded_steps of seeded-steps 1.2 (seeded_steps)"
    assert report["imports_cleanly"].outcome == "failed"
    assert report["imports_cleanly"].message == "its import changes torch's generator"
