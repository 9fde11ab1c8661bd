"""Every check of domains finds its faults, and correct domains pass all checks."""

from __future__ import annotations

import importlib
import re

import pytest

from gradhomog.testing import check_domain, checks
from tests.testing.domains.faults import FAULTS
from tests.testing.domains.good import BLOTS, RAMPS
from tests.testing.fault import Fault

for theme in ("declarations", "tasks"):
    importlib.import_module(f"tests.testing.domains.faulty_{theme}")

INSTALLED = "imports_cleanly"  # tested in test_imports.py with an installed distribution


def test_every_check_has_a_faulty_domain():
    assert {fault.check for fault in FAULTS} | {INSTALLED} == {check.name for check in checks("domains")}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_check_finds_the_fault(fault: Fault):
    report = check_domain(fault.spec, only=fault.check)
    result = report[fault.check]
    assert result.outcome == "failed", result
    assert re.search(fault.message, result.message), result.message
    assert not report.passed


OF_IMAGES_AND_VARIANTS = {
    "image_size", "splits_share_no_input", "splits_share_no_class", "listed_variants_work", "unknown_variant_rejected",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "not_applicable"), [(BLOTS, set()), (RAMPS, OF_IMAGES_AND_VARIANTS)])
def test_correct_domains_pass_all_checks(spec, not_applicable):
    outcomes = {result.check: result.outcome for result in check_domain(spec)}
    assert {name for name, outcome in outcomes.items() if outcome == "not applicable"} == {INSTALLED, *not_applicable}
    assert outcomes.pop("cost") == "reported"
    assert set(outcomes.values()) == {"passed", "not applicable"}
