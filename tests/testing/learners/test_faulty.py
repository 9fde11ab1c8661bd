"""Every check of learners finds its faults, and a correct learner passes all checks."""

from __future__ import annotations

import importlib
import re

import pytest

from gradhomog.testing import check_learner, checks
from tests.testing.fault import Fault
from tests.testing.learners.faults import FAULTS
from tests.testing.learners.good import GOOD

pytestmark = pytest.mark.slow

for theme in ("declarations", "rows", "stages", "steps", "side_effects", "state"):
    importlib.import_module(f"tests.testing.learners.faulty_{theme}")

INSTALLED = "imports_cleanly"  # tested in test_imports.py with an installed distribution


def test_every_check_has_a_faulty_learner():
    assert {fault.check for fault in FAULTS} | {INSTALLED} == {check.name for check in checks("learners")}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_check_finds_the_fault(fault: Fault):
    report = check_learner(fault.spec, only=fault.check)
    result = report[fault.check]
    assert result.outcome == "failed", result
    assert re.search(fault.message, result.message), result.message
    assert not report.passed


def test_a_correct_learner_passes_all_checks():
    outcomes = {result.check: result.outcome for result in check_learner(GOOD)}
    assert outcomes.pop(INSTALLED) == "not applicable"
    assert outcomes.pop("saliency") == outcomes.pop("cost") == "reported"
    assert set(outcomes.values()) == {"passed"}
