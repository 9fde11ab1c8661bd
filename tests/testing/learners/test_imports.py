"""The check `imports_cleanly` on an installed learner."""

from __future__ import annotations

import pytest
import torch

from gradhomog.testing import check_learner

pytestmark = pytest.mark.slow

PLUGIN = """
import torch
from gradhomog import LearnerSpec, hookimpl
from tests.testing.learners.good import OneStep

torch.set_default_dtype(torch.float64)

@hookimpl
def gradhomog_learner():
    return LearnerSpec(factory=OneStep, summary="one step", traits={"exact_rows"})
"""


def test_an_import_that_changes_the_default_dtype_is_found(gradhomog_install):
    name = gradhomog_install("precise-steps", PLUGIN, kind="learners")
    before = torch.get_default_dtype()
    try:
        report = check_learner(name, only="imports_cleanly")  # also imports the plugin in this process
    finally:
        torch.set_default_dtype(before)
    assert report.subject == "learner precise_steps of precise-steps 1.2 (precise_steps)"
    assert report["imports_cleanly"].outcome == "failed"
    assert report["imports_cleanly"].message == "its import changes the default dtype"
