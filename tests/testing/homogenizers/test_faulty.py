"""The kit tests itself: every check finds the faults that it is for, and nothing without them."""

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

ELSEWHERE = {
    "imports_cleanly": "learners/test_imports.py and domains/test_imports.py, with distributions that can be imported",
    "devices": "needs another device",
    "cost": "measures, and finds nothing",
}
GOOD_SPECS = {spec.factory.__name__: spec for spec in GOOD.values()}


def test_every_check_has_a_faulty_homogenizer():
    assert {fault.check for fault in FAULTS} | set(ELSEWHERE) == {check.name for check in checks("homogenizers")}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_found(fault: Fault):
    report = check_homogenizer(fault.spec, only=fault.check)
    result = report[fault.check]
    assert result.outcome == "failed", result
    assert re.search(fault.message, result.message), result.message
    assert not report.passed
    if fault.shows is not None:
        assert fault.shows(**result.example), result.example


@functools.cache
def report_of(name: str) -> CheckReport:
    return check_homogenizer(GOOD_SPECS[name], fast=True)


@pytest.mark.parametrize("name", GOOD_SPECS)
def test_without_a_fault_nothing_is_found(name: str):
    failed = [result for result in report_of(name) if result.outcome == "failed"]
    assert not failed, failed


@pytest.mark.parametrize("check", sorted({fault.check for fault in FAULTS}))
def test_every_check_passes_for_some_good_homogenizer_without_the_fault(check: str):
    names = {fault.good.factory.__name__ for fault in FAULTS if fault.check == check}
    # "stochastic" and "momentum" are claimed wrongly by the faulty one, so the good one does not claim them.
    assert all(report_of(name)[check].outcome in ("passed", "not held", "not applicable") for name in names)
