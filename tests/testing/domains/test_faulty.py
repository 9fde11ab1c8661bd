"""The kit tests itself: every check finds the faults that it is for, and good domains have none."""

from __future__ import annotations

import importlib
import re

import pytest

from gradhomog.testing import check_domain, checks
from tests.testing.domains.faults import FAULTS
from tests.testing.domains.good import BLOTS, RAMPS
from tests.testing.fault import Fault

for theme in ("promises", "tasks"):
    importlib.import_module(f"tests.testing.domains.faulty_{theme}")

INSTALLED = "imports_cleanly"  # test_imports.py, with a distribution that can be imported


def test_every_check_has_a_faulty_domain():
    assert {fault.check for fault in FAULTS} | {INSTALLED} == {check.name for check in checks("domains")}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_found(fault: Fault):
    report = check_domain(fault.spec, only=fault.check)
    result = report[fault.check]
    assert result.outcome == "failed", result
    assert re.search(fault.message, result.message), result.message
    assert not report.passed


OF_IMAGES_AND_VARIANTS = {
    "image_size", "splits_share_no_input", "splits_share_no_class", "variants_made", "unknown_variant_refused",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "not_applicable"), [(BLOTS, set()), (RAMPS, OF_IMAGES_AND_VARIANTS)])
def test_without_a_fault_nothing_is_found(spec, not_applicable):
    outcomes = {result.check: result.outcome for result in check_domain(spec)}
    assert {name for name, outcome in outcomes.items() if outcome == "not applicable"} == {INSTALLED, *not_applicable}
    assert outcomes.pop("cost") == "reported"
    assert set(outcomes.values()) == {"passed", "not applicable"}
