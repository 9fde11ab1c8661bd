"""Every check of homogenizers finds its faults, and correct homogenizers pass all checks."""

from __future__ import annotations

import functools
import importlib
import re

import pytest

from gradhomog.testing import CheckReport, check_homogenizer, checks
from tests.testing.fault import Fault
from tests.testing.homogenizers.faults import FAULTS
from tests.testing.homogenizers.good import GOOD

pytestmark = pytest.mark.slow

for theme in ("cost", "declarations", "derivatives", "directions", "encoder", "side_effects", "state"):
    importlib.import_module(f"tests.testing.homogenizers.faulty_{theme}")

WITHOUT_FAULT = {
    "imports_cleanly": "tested in learners/test_imports.py and domains/test_imports.py with installed distributions",
    "devices": "needs another device",
    "cost": "reports a measurement only",
}
GOOD_SPECS = {spec.factory.__name__: spec for spec in GOOD.values()}


def test_every_check_has_a_faulty_homogenizer():
    assert {fault.check for fault in FAULTS} | set(WITHOUT_FAULT) == {check.name for check in checks("homogenizers")}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_check_finds_the_fault(fault: Fault):
    report = check_homogenizer(fault.spec, only=fault.check)
    result = report[fault.check]
    assert result.outcome == "failed", result
    assert re.search(fault.message, result.message), result.message
    assert not report.passed
    if fault.example_is_valid is not None:
        assert fault.example_is_valid(**result.example), result.example


@functools.cache
def report_of(name: str) -> CheckReport:
    return check_homogenizer(GOOD_SPECS[name], fast=True)


@pytest.mark.parametrize("name", GOOD_SPECS)
def test_correct_homogenizers_pass_all_checks(name: str):
    failed = [result for result in report_of(name) if result.outcome == "failed"]
    assert not failed, failed


@pytest.mark.parametrize("check", sorted({fault.check for fault in FAULTS}))
def test_every_check_passes_for_the_correct_homogenizers(check: str):
    names = {fault.good.factory.__name__ for fault in FAULTS if fault.check == check}
    # Only the faulty homogenizers claim "stochastic" and "momentum", so these checks may also give "not held".
    assert all(report_of(name)[check].outcome in ("passed", "not held", "not applicable") for name in names)
